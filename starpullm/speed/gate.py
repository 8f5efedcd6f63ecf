"""The throughput gate: what is compared, of a build with another one.

docs/performance.md describes it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from starpullm.checks.result import Finding, Outcome, Result
from starpullm.speed.speed_verdict import EQUIVALENCE_MARGIN, Judged, SpeedVerdict, judge
from starpullm.speed.worker import STEP

BUDGET = 0.02
"""The slowdown that is tolerated; a build is called slower if its slowdown is shown to be larger."""

ERROR_RATE = 0.01
"""The largest probability that a build whose slowdown is just the budget is called slower, in any quantity."""

MIN_SHARE = 0.01
"""An operation is judged if it takes at least this fraction of the kernels' time."""

MIN_TASK_SECONDS = 1e-6
"""An operation is judged if its tasks take at least so long on average; one reading of the clock takes 2 % of it."""

_OUTCOMES = {
    SpeedVerdict.FASTER: Outcome.PASSED,
    SpeedVerdict.UNCHANGED: Outcome.PASSED,
    SpeedVerdict.SLOWER: Outcome.FAILED,
    SpeedVerdict.INCONCLUSIVE: Outcome.INCONCLUSIVE,
}


@dataclass(frozen=True, kw_only=True)
class Change(Judged):
    """How the time of one quantity has changed.

    ``seconds`` is the baseline's time per step, of an operation the sum over all workers. ``share`` is the fraction of
    the kernels' time; None for the step. ``verdict`` is None if the operation is too small to be judged.
    """

    name: str
    seconds: float
    share: float | None

    def __str__(self) -> str:
        share = "" if self.share is None else f", {self.share:.1%} of the kernels' time"
        return (
            f"{self.name}: {self.change:+.1%} ({self.low:+.1%} to {self.high:+.1%}){share}; "
            f"control {self.control_low:+.1%} to {self.control_high:+.1%}"
        )


class BuildSpeed(NamedTuple):
    """How fast a build is: tokens of all ranks, and matrix products over a step as a fraction of the machine's limit.

    The limit was measured in the same processes before and after the turns, in 10^9 operations per second.
    """

    tokens_per_ms: float
    matmul_limit_gflops: float
    fraction_of_limit: float


def compare_builds(
    configuration: str,
    new: Sequence[Mapping[str, float]],
    baseline: Sequence[Mapping[str, float]],
    control: Sequence[Mapping[str, float]],
    *,
    tasks: Mapping[str, int],
    speed: BuildSpeed,
    budget: float = BUDGET,
) -> Result:
    """Decide whether a build is slower than another; the largest change of a judged quantity is ``measured``.

    `new`, `baseline` and `control` have for each round the seconds by quantity, one of which is ``STEP``; the i-th of
    each are of the same round. `tasks` are the baseline's of a step, by operation; `speed` is the new build's.

    The fact ``changes`` has the step first, then the operations, longest first. ``minimum_detectable_effect`` is the
    smallest slowdown of any judged operation that would have been called slower.
    """
    changes = _changes((new, baseline, control), tasks, budget)
    step, judged = changes[0], [change for change in changes if change.verdict is not None]
    verdict = _together(judged)
    baseline_speed = speed.tokens_per_ms * statistics.median(turn[STEP] for turn in new) / step.seconds
    detectable = max((change.minimum_detectable_effect for change in judged if change is not step), default=None)
    reason, outcome = _reason(verdict, judged, budget), _OUTCOMES[verdict]
    lines = _lines(changes, speed, baseline_speed, detectable, len(new))
    return Result(
        check="throughput",
        outcome=outcome,
        sentence=reason if verdict.value == outcome.value else f"{verdict.value}: {reason}",
        findings=tuple(map(Finding, lines)),
        compared=len(new),
        unit="rounds",
        measured=max(change.change for change in judged),
        limit=budget,
        facts={
            "verdict": verdict,
            "configuration": configuration,
            **speed._asdict(),
            "baseline_tokens_per_ms": baseline_speed,
            "minimum_detectable_effect": detectable,
            "changes": tuple(changes),
        },
    )


def _changes(series: Sequence[Sequence[Mapping[str, float]]], tasks: Mapping[str, int], budget: float) -> list[Change]:
    """Return the changes of all quantities of the new build, the baseline and the control, the step first."""
    # An operation that only one of the two builds has can't be compared; the step includes its time.
    names = [STEP, *(name for name in series[1][0] if name in series[0][0] and name != STEP)]
    new, baseline, control = (np.log([[turn[name] for name in names] for turn in turns]) for turns in series)
    seconds = np.exp((np.median(baseline, axis=0) + np.median(control, axis=0)) / 2).tolist()
    kernels = sum(seconds[1:])
    is_judged = [True]
    for name, own_seconds in zip(names[1:], seconds[1:], strict=True):
        is_judged.append(own_seconds >= max(MIN_SHARE * kernels, MIN_TASK_SECONDS * tasks[name]))
    found = judge(new, baseline, control, budget=budget, tail=ERROR_RATE / sum(is_judged))
    changes = [
        Change(name=name, seconds=own_seconds, share=None if name == STEP else own_seconds / kernels, **vars(change))
        for name, own_seconds, change in zip(names, seconds, found, strict=True)
    ]
    changes = [
        change if judged else replace(change, verdict=None) for change, judged in zip(changes, is_judged, strict=True)
    ]
    return [changes[0], *sorted(changes[1:], key=lambda change: -change.seconds)]


def _together(judged: Sequence[Change]) -> SpeedVerdict:
    """Return slower if any quantity is, then inconclusive if any is; otherwise the step decides between the rest."""
    verdicts = {change.verdict for change in judged}
    for verdict in (SpeedVerdict.SLOWER, SpeedVerdict.INCONCLUSIVE):
        if verdict in verdicts:
            return verdict
    return SpeedVerdict.FASTER if judged[0].verdict is SpeedVerdict.FASTER else SpeedVerdict.UNCHANGED


def _reason(verdict: SpeedVerdict, judged: Sequence[Change], budget: float) -> str:
    own = [change for change in judged if change.verdict is verdict]
    if verdict is SpeedVerdict.SLOWER:
        names = ", ".join(f"{change.name} {change.change:+.1%}" for change in own)
        return f"{names}: shown to be more than {budget:.1%}"
    if verdict is SpeedVerdict.INCONCLUSIVE:
        names = ", ".join(change.name for change in own)
        return f"a slowdown of {EQUIVALENCE_MARGIN:.1%} can't be excluded: {names}"
    slowest = max(change.high for change in judged)
    at_least = f" by {slowest:.1%} or more" if slowest > 0 else ""
    return f"step {judged[0].change:+.1%}; nothing is slower{at_least}"


def _lines(
    changes: Sequence[Change], speed: BuildSpeed, baseline_speed: float, detectable: float | None, rounds: int
) -> Iterator[str]:
    """Yield the speed, the slower quantities, those that couldn't be judged, and the step."""
    yield (
        f"{speed.tokens_per_ms:.4g} tokens/ms, baseline {baseline_speed:.4g}; {speed.fraction_of_limit:.1%} of the "
        f"machine's {speed.matmul_limit_gflops:.4g} GFLOP/s"
    )
    step, shown = changes[0], (SpeedVerdict.SLOWER, SpeedVerdict.INCONCLUSIVE)
    for verdict in shown:
        yield from (f"{verdict.value}: {change}" for change in changes if change.verdict is verdict)
    if step.verdict not in shown:
        yield str(step)
    operations = (
        "no operation is large enough to be judged"
        if detectable is None
        else f"and of {detectable:.1%} of any judged operation"
    )
    of_step = f"{step.minimum_detectable_effect:.1%} of the step"
    yield f"{rounds} rounds; a slowdown of {of_step} would have been seen, {operations}"
