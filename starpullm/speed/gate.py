"""The throughput gate's decisions: a build against another, turn by turn, or against stored runs of the same machine.

``contest.py`` and the suite call it with what was measured; nothing here runs anything.

A comparison of two builds has three series of turns: the new build's, the baseline's, and again the baseline's from a
process of its own, which is the A/A control. A block holds one turn of each, in random order. The quantities are the
step and every operation's kernels. Per block, the new build's time is compared with each of the baseline's two, by
logarithms; over blocks, the mean of the middle half of these counts, because what else the machine does can only
disturb single turns by much, and a quantity's change is the mean of the two comparisons. (Compared with the mean of the
baseline's two instead, a build on a busy machine looks faster than itself: disturbances only slow down, and of two
turns one is disturbed more often.) The interval is Student's, with a bootstrap's standard error. All intervals
together miss with the probability `ERROR_RATE` to either side at most, each with an equal part of it; the number of
blocks is fixed before the first of them is run, so there is no second look that would cost some more.

What the control's interval says of two builds that are the same is taken off: as far as it excludes no change, the
change's interval is made wider, to both sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError

__all__ = [
    "BUDGET",
    "ERROR_RATE",
    "MIN_BLOCKS",
    "MIN_STORED",
    "RESOLUTION",
    "STEP",
    "Change",
    "ContestResult",
    "StoredResult",
    "Verdict",
    "compare_builds",
    "compare_with_stored",
]

BUDGET = 0.02
"""So much slower may a build be: a slowdown must be shown to be more."""

RESOLUTION = 0.05
"""A slowdown of so much must be excluded before a build is called unchanged."""

ERROR_RATE = 0.01
"""How often at most a build that is just as much slower as the budget allows is called slower: in any quantity."""

MIN_SHARE = 0.01
"""An operation is judged if it has this part of the kernels' time at least."""

MIN_TASK_SECONDS = 1e-6
"""An operation is judged if its tasks take so long on average: `BUDGET` of it is what one look at the clock takes."""

MIN_BLOCKS = 16
"""With fewer the bootstrap's error means nothing."""

MIN_STORED = 3
"""So many stored runs are needed to know how much runs differ by themselves."""

STEP = "step"
"""The name of the quantity that isn't an operation."""

_RESAMPLES = 4_000
_RESAMPLES_AT_ONCE = 2_000  # memory
_SEED = 1  # of the bootstrap: the same measurements have the same verdict


class Verdict(Enum):
    """What a comparison came to."""

    FASTER = "faster"
    UNCHANGED = "unchanged"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"
    NO_BASELINE = "no baseline"


_OUTCOMES = {
    Verdict.FASTER: Outcome.PASSED,
    Verdict.UNCHANGED: Outcome.PASSED,
    Verdict.SLOWER: Outcome.FAILED,
    Verdict.INCONCLUSIVE: Outcome.INCONCLUSIVE,
    Verdict.NO_BASELINE: Outcome.NOT_COMPARABLE,
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """How the time of one quantity has changed; fractions of the baseline's time, 0.05 being 5 % slower.

    Parameters
    ----------
    name
        ``STEP``, or an operation.
    seconds
        The baseline's time per step, of all workers together for an operation.
    share
        Of the kernels' time; None for the step.
    change, low, high
        The estimate and its interval.
    control_low, control_high
        The interval of the change from one process of the baseline to the other.
    visible
        The smallest slowdown that would have been called slower with the control's disturbance.
    verdict
        ``SLOWER``: more than the budget. ``INCONCLUSIVE``: a slowdown of the resolution isn't excluded. None: the
        operation's share, or its tasks, are too small to be judged.
    """

    name: str
    seconds: float
    share: float | None
    change: float
    low: float
    high: float
    control_low: float
    control_high: float
    visible: float
    verdict: Verdict | None

    def __str__(self) -> str:
        """Return it as a line."""
        share = "" if self.share is None else f", {self.share:.1%} of the kernels' time"
        return (
            f"{self.name}: {self.change:+.1%} ({self.low:+.1%} to {self.high:+.1%}){share}; "
            f"control {self.control_low:+.1%} to {self.control_high:+.1%}"
        )


@dataclass(frozen=True, kw_only=True)
class ContestResult(CheckResult):
    """Two builds by turns; ``measured`` is the highest change of those judged, ``limit`` the budget.

    Parameters
    ----------
    configuration
        In words.
    verdict
        Of all quantities together.
    tokens_per_ms, baseline_tokens_per_ms
        Medians over turns.
    matmul_limit_gflops, fraction_of_limit
        What the cores do at most, measured in the same processes before and after the turns, and the part of it that
        the new build's matrix products have over a step.
    blocks
        Turns of each of the three.
    visible
        The smallest slowdown of any judged operation that would have been called slower, None if none is judged; the
        step's is in its change.
    changes
        The step first, then the operations, longest first.
    """

    configuration: str
    verdict: Verdict
    tokens_per_ms: float
    baseline_tokens_per_ms: float
    matmul_limit_gflops: float
    fraction_of_limit: float
    blocks: int
    visible: float | None
    changes: tuple[Change, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the speed, the slower quantities, those that couldn't be judged, and the step."""
        yield (
            f"{self.tokens_per_ms:.4g} tokens/ms, baseline {self.baseline_tokens_per_ms:.4g}; "
            f"{self.fraction_of_limit:.1%} of the machine's {self.matmul_limit_gflops:.4g} GFLOP/s"
        )
        for verdict in (Verdict.SLOWER, Verdict.INCONCLUSIVE):
            yield from (f"{verdict.value}: {change}" for change in self.changes if change.verdict is verdict)
        if self.changes[0].verdict not in (Verdict.SLOWER, Verdict.INCONCLUSIVE):
            yield str(self.changes[0])
        operations = (
            "no operation is large enough to be judged"
            if self.visible is None
            else f"and of {self.visible:.1%} of any judged operation"
        )
        yield (
            f"{self.blocks} turns each; a slowdown of {self.changes[0].visible:.1%} of the step would have been seen, "
            f"{operations}"
        )


def compare_builds(
    configuration: str,
    new: Sequence[Mapping[str, float]],
    baseline: Sequence[Mapping[str, float]],
    control: Sequence[Mapping[str, float]],
    *,
    tasks: Mapping[str, int],
    tokens: int,
    flops: int,
    limit_gflops: float,
    budget: float = BUDGET,
    resolution: float = RESOLUTION,
) -> ContestResult:
    """Decide whether a build is slower than another.

    Parameters
    ----------
    configuration
        In words, for messages.
    new, baseline, control
        By block: seconds by quantity, one of which is ``STEP``. The i-th of each were measured next to each other.
    tasks
        By operation: the baseline's tasks of a step.
    tokens, flops
        Of a step.
    limit_gflops
        What the machine does at most.
    budget, resolution
        Other ones.

    Raises
    ------
    InvalidArgumentError
        If there are too few blocks, not as many of each, or the budget isn't from 0 to the resolution.
    """
    if not len(new) == len(baseline) == len(control) >= MIN_BLOCKS:
        raise InvalidArgumentError(
            f"blocks: found {len(new)}, {len(baseline)} and {len(control)}, expected the same number, at least "
            f"{MIN_BLOCKS}"
        )
    if not 0 <= budget <= resolution:
        raise InvalidArgumentError(f"budget: found {budget:g}, expected 0 to {resolution:g}")
    # An operation that only one of the two builds has can't be compared; the step counts it.
    names = [name for name in baseline[0] if name in new[0]]
    logs = [np.log([[block[name] for name in names] for block in series]) for series in (new, baseline, control)]
    seconds = dict(zip(names, np.exp((np.median(logs[1], axis=0) + np.median(logs[2], axis=0)) / 2), strict=True))
    kernels = sum(of for name, of in seconds.items() if name != STEP)

    def is_judged(name: str) -> bool:
        return name == STEP or seconds[name] >= max(MIN_SHARE * kernels, MIN_TASK_SECONDS * tasks[name])

    judged = [name for name in names if is_judged(name)]
    tail = ERROR_RATE / len(judged)
    change = _interval([logs[0] - logs[1], logs[0] - logs[2]], tail)
    aa = _interval([logs[2] - logs[1]], tail)
    bias = np.maximum(np.maximum(aa[1], -aa[2]), 0)
    changes = [
        _change(
            name,
            seconds[name],
            None if name == STEP else seconds[name] / kernels,
            (change[0][i], change[1][i] - bias[i], change[2][i] + bias[i]),
            (aa[1][i], aa[2][i]),
            (budget, resolution) if name in judged else None,
        )
        for i, name in enumerate(names)
    ]
    changes.sort(key=lambda of: (of.name != STEP, -of.seconds))
    counted = [of for of in changes if of.verdict is not None]
    verdict = _together(counted)
    step_seconds = math.exp(float(np.median(logs[0][:, names.index(STEP)])))
    visible = max((of.visible for of in counted if of.name != STEP), default=None)
    return ContestResult(
        name="throughput",
        outcome=_OUTCOMES[verdict],
        finding=_finding(verdict, _reason(verdict, counted, budget, resolution)),
        measured=max(of.change for of in counted),
        limit=budget,
        configuration=configuration,
        verdict=verdict,
        tokens_per_ms=tokens / step_seconds / 1e3,
        baseline_tokens_per_ms=tokens / float(seconds[STEP]) / 1e3,
        matmul_limit_gflops=limit_gflops,
        fraction_of_limit=flops / step_seconds / 1e9 / limit_gflops,
        blocks=len(new),
        visible=visible,
        changes=tuple(changes),
    )


@dataclass(frozen=True, kw_only=True)
class StoredResult(CheckResult):
    """A run against stored ones; ``measured`` is the change of the time, 0.05 being 5 % slower, ``limit`` the budget.

    Times are compared in units of what the machine did at most in the same run, so by ``fraction_of_limit``.

    Parameters
    ----------
    configuration
        In words.
    verdict
        What came out.
    tokens_per_ms, matmul_limit_gflops, fraction_of_limit
        Of this run.
    stored
        ``fraction_of_limit`` of each stored run, the oldest first.
    low, high
        The change's interval; None without enough stored runs.
    visible
        The smallest slowdown that would have been called slower.
    """

    configuration: str
    verdict: Verdict
    tokens_per_ms: float
    matmul_limit_gflops: float
    fraction_of_limit: float
    stored: tuple[float, ...]
    low: float | None
    high: float | None
    visible: float | None

    def detail_lines(self) -> Iterator[str]:
        """Yield the speed, and what it was compared with."""
        yield (
            f"{self.tokens_per_ms:.4g} tokens/ms; {self.fraction_of_limit:.1%} of the machine's "
            f"{self.matmul_limit_gflops:.4g} GFLOP/s"
        )
        if self.visible is not None:
            yield (
                f"stored runs of this machine: {len(self.stored)}, {min(self.stored):.1%} to {max(self.stored):.1%}; a "
                f"slowdown of {self.visible:.1%} would have been seen"
            )


def compare_with_stored(
    configuration: str,
    fraction_of_limit: float,
    stored: Sequence[float],
    *,
    tokens_per_ms: float,
    limit_gflops: float,
    budget: float = BUDGET,
    resolution: float = RESOLUTION,
) -> StoredResult:
    """Decide whether a run is slower than the stored runs of the same configuration on the same machine.

    How much two runs differ by themselves is only known from the stored ones: the interval is Student's for one more
    run of the same kind, with the probability `ERROR_RATE` to either side.

    Parameters
    ----------
    configuration
        In words, for messages.
    fraction_of_limit, stored
        Of this run, and of stored ones.
    tokens_per_ms, limit_gflops
        Of this run, for the result.
    budget, resolution
        Other ones.
    """
    verdict, measured, low, high, visible = Verdict.NO_BASELINE, None, None, None, None
    reason = f"{len(stored)} stored runs of this configuration on this machine, expected at least {MIN_STORED}"
    if len(stored) >= MIN_STORED:
        logs = np.log(stored)
        change = float(logs.mean()) - math.log(fraction_of_limit)
        half = _student(len(stored) - 1, ERROR_RATE) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / len(stored))
        measured, low, high = (math.expm1(of) for of in (change, change - half, change + half))
        visible = (1 + budget) * math.exp(half) - 1
        verdict = _verdict(low, high, budget, resolution)
        reason = f"{measured:+.1%} ({low:+.1%} to {high:+.1%}) of the time of {len(stored)} stored runs"
    return StoredResult(
        name="throughput",
        outcome=_OUTCOMES[verdict],
        finding=_finding(verdict, reason),
        measured=measured,
        limit=budget,
        configuration=configuration,
        verdict=verdict,
        tokens_per_ms=tokens_per_ms,
        matmul_limit_gflops=limit_gflops,
        fraction_of_limit=fraction_of_limit,
        stored=tuple(stored),
        low=low,
        high=high,
        visible=visible,
    )


# ---- How it works ----


def _interval(differences: Sequence[NDArray[np.float64]], tail: float) -> NDArray[np.float64]:
    """Return the mean of the differences' estimates, and the ends that miss with probability `tail` each: (3, columns).

    Each of `differences` is (blocks, columns).
    """
    values = np.concatenate(differences, axis=1)
    blocks = len(values)

    def estimate(of: NDArray[np.float64]) -> NDArray[np.float64]:
        means: NDArray[np.float64] = _middle(of).reshape(*of.shape[:-2], len(differences), -1).mean(axis=-2)
        return means

    random = np.random.default_rng(_SEED)
    parts = []
    for _ in range(_RESAMPLES // _RESAMPLES_AT_ONCE):
        parts.append(estimate(values[random.integers(0, blocks, (_RESAMPLES_AT_ONCE, blocks))]))
    middle = estimate(values)
    # The bootstrap's own quantiles so far out would rest on a few resamples, so its standard error is what counts. A
    # resample of n has the variance (n - 1)/n of a sample's. And a trimmed mean's error is Student's with the degrees
    # of freedom of what was left (Yuen 1974).
    error = np.concatenate(parts).std(axis=0) * math.sqrt(blocks / (blocks - 1))
    half = error * _student(blocks - 2 * (blocks // 4) - 1, tail)
    return np.stack([middle, middle - half, middle + half])


def _middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half over the last axis but one."""
    count = values.shape[-2]
    middle: NDArray[np.float64] = np.sort(values, axis=-2)[..., count // 4 : count - count // 4, :].mean(axis=-2)
    return middle


def _change(
    name: str,
    seconds: float,
    share: float | None,
    change: tuple[float, float, float],
    control: tuple[float, float],
    limits: tuple[float, float] | None,
) -> Change:
    estimate, low, high = (math.expm1(of) for of in change)
    budget, resolution = limits or (BUDGET, RESOLUTION)
    return Change(
        name=name,
        seconds=float(seconds),
        share=None if share is None else float(share),
        change=estimate,
        low=low,
        high=high,
        control_low=math.expm1(control[0]),
        control_high=math.expm1(control[1]),
        visible=(1 + budget) * math.exp(max(-control[0], control[1])) - 1,
        verdict=_verdict(low, high, budget, resolution) if limits else None,
    )


def _verdict(low: float, high: float, budget: float, resolution: float) -> Verdict:
    if low > budget:
        return Verdict.SLOWER
    if high < 0:
        return Verdict.FASTER
    return Verdict.UNCHANGED if high < resolution else Verdict.INCONCLUSIVE


def _together(changes: Sequence[Change]) -> Verdict:
    """Slower if anything is, and faster if the step is; what couldn't be judged keeps it from being unchanged."""
    verdicts = {change.verdict for change in changes}
    step = next(change for change in changes if change.name == STEP)
    if Verdict.SLOWER in verdicts:
        return Verdict.SLOWER
    if Verdict.INCONCLUSIVE in verdicts:
        return Verdict.INCONCLUSIVE
    return Verdict.FASTER if step.verdict is Verdict.FASTER else Verdict.UNCHANGED


def _reason(verdict: Verdict, changes: Sequence[Change], budget: float, resolution: float) -> str:
    own = [change for change in changes if change.verdict is verdict]
    if verdict is Verdict.SLOWER:
        names = ", ".join(f"{change.name} {change.change:+.1%}" for change in own)
        return f"{names}: shown to be more than {budget:.1%}"
    if verdict is Verdict.INCONCLUSIVE:
        names = ", ".join(change.name for change in own)
        return f"a slowdown of {resolution:.1%} can't be excluded: {names}"
    step = next(change for change in changes if change.name == STEP)
    return f"step {step.change:+.1%}; nothing is slower by {max(change.high for change in changes):.1%} or more"


def _finding(verdict: Verdict, reason: str) -> str:
    """Begin with the verdict, unless the outcome before it says the same."""
    return reason if verdict.value == _OUTCOMES[verdict].value else f"{verdict.value}: {reason}"


def _student(degrees: int, tail: float) -> float:
    """Return the value that Student's t exceeds with probability `tail`."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def exceeds(value: float) -> float:
        """By Simpson's rule in the angle whose tangent is t / sqrt(degrees)."""
        end = math.atan(value / math.sqrt(degrees))
        angles = np.linspace(0, end, 2001)
        density = np.cos(angles) ** (degrees - 1) * scale * math.sqrt(degrees)
        weights = np.ones(2001)
        weights[1:-1:2], weights[2:-1:2] = 4, 2
        return 0.5 - float((density * weights).sum()) * end / 6000

    low, high = 0.0, 1.0
    while exceeds(high) > tail:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) > tail else (low, middle)
    return statistics.fmean((low, high))
