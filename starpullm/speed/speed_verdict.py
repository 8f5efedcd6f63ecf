"""How measurements are judged: a change of speed with its interval, and whether the machine was quiet.

SciPy is imported here alone, when it is first needed, so that everything else works without it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import MissingDependencyError
from starpullm.processes.mpirun import load_average

EQUIVALENCE_MARGIN = 0.05
"""The equivalence margin: the slowdown that must be excluded before a build is called unchanged."""

ENOUGH_VALUES = 6
"""With fewer, `median_interval` is no interval of 95 %, and there is no verdict."""

_QUIET = 1.25  # the ratio of two measurements of one limit, at most, where nothing else runs
_CUT = 0.25  # of the values, at each end
_RESAMPLES = 4_000
_RESAMPLES_AT_ONCE = 500  # so that they stay in the cache
_STEAL = 7  # which of a processor's times in /proc/stat is the one that other virtual machines had
_SEED = 1  # of the bootstrap: the same measurements have the same verdict


class SpeedVerdict(Enum):
    """The result of a comparison of two builds."""

    FASTER = "faster"
    UNCHANGED = "unchanged"
    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """How a time has changed, in fractions of the baseline's time: 0.05 means 5 % slower; and the verdict on it.

    ``minimum_detectable_effect`` is the smallest slowdown that would have been called slower. ``control_low`` and
    ``control_high`` are the interval of the difference between two processes of the baseline.
    """

    change: float
    low: float
    high: float
    minimum_detectable_effect: float
    verdict: SpeedVerdict | None
    control_low: float
    control_high: float


def judge(
    new: NDArray[np.float64],
    baseline: NDArray[np.float64],
    control: NDArray[np.float64],
    *,
    budget: float,
    tail: float,
) -> list[Judged]:
    """Return the change of each quantity.

    `new`, `baseline` and `control` have the logarithms of times, shape (rounds, quantities). `control` is another
    process of the baseline; the i-th rows of all three are of the same round. A change is the average of two
    comparisons, one with each of the baseline's processes, and a bias that the control shows widens its interval. A
    comparison with the mean of the baseline's two turns would make a build on a busy machine look faster than itself:
    disturbances only slow down, and one of two turns is disturbed more often than one turn.
    An interval misses with the probability `tail` to either side.
    """
    change, low, high = interval([new - baseline, new - control], tail)
    _, control_low, control_high = interval([control - baseline], tail)
    bias = np.maximum(np.maximum(control_low, -control_high), 0)
    half = np.maximum(-control_low, control_high)
    low, high = low - bias, high + bias
    names = ("change", "low", "high", "minimum_detectable_effect", "control_low", "control_high")
    rows = np.expm1([change, low, high, math.log1p(budget) + half, control_low, control_high]).T.tolist()
    return [Judged(verdict=_verdict(row[1], row[2], budget), **dict(zip(names, row, strict=True))) for row in rows]


def _verdict(low: float, high: float, budget: float) -> SpeedVerdict:
    if low > budget:
        return SpeedVerdict.SLOWER
    if high < 0:
        return SpeedVerdict.FASTER
    return SpeedVerdict.UNCHANGED if high < EQUIVALENCE_MARGIN else SpeedVerdict.INCONCLUSIVE


def scipy_stats() -> ModuleType:
    """Return ``scipy.stats``."""
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingDependencyError(
            f"scipy: can't be imported ({error}), expected it for the throughput gate: pip install 'starpullm[bench]'"
        ) from error
    return stats


def interval(differences: Sequence[NDArray[np.float64]], tail: float) -> NDArray[np.float64]:
    """Return an estimate of each column's mean difference, and its confidence interval.

    The estimate is the mean of the middle half of the rows, averaged over `differences`. The interval is Student's,
    with a bootstrap's standard error: quantiles of the bootstrap so far out would rest on a few resamples. Its degrees
    of freedom are those of the values that the trimmed mean keeps (K. K. Yuen, Biometrika 61, 1974).

    Each of `differences` has shape (rows, columns); the i-th rows of all of them belong together and are resampled
    together. `tail` is the probability that the true value lies below the interval, and that it lies above. The result
    has shape (3, columns): estimates, lower ends, upper ends.
    """
    stats = scipy_stats()

    def estimate(*values: NDArray[np.float64], axis: int) -> Any:
        # trim_mean partitions the values; that and sorting them first take half the time of partitioning alone.
        return np.mean([stats.trim_mean(np.sort(of, axis), _CUT, axis) for of in values], axis=0)

    rows = len(differences[0])
    middle = estimate(*differences, axis=0)
    error = stats.bootstrap(
        differences,
        estimate,
        paired=True,
        n_resamples=_RESAMPLES,
        batch=_RESAMPLES_AT_ONCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).standard_error
    # The variance over resamples of n values is (n - 1)/n of that over samples.
    half = error * math.sqrt(rows / (rows - 1)) * student(rows - 2 * int(_CUT * rows) - 1, tail)
    return np.stack([middle, middle - half, middle + half])


def student(degrees: int, tail: float) -> float:
    """Return the value that Student's t with so many degrees of freedom exceeds with probability `tail`."""
    return float(scipy_stats().t.isf(tail, degrees))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return two of the values between which the median of further ones lies, with a probability of 95 % or more.

    They are order statistics: the number of values below the true median is binomial. With fewer than `ENOUGH_VALUES`
    values the least and the most are returned, and the probability is smaller.
    """
    ordered, count = sorted(values), len(values)
    cut, tail = 0, (1 + count) * 0.5**count
    while tail <= 0.025:
        cut += 1
        tail += math.comb(count, cut + 1) * 0.5**count
    return ordered[cut], ordered[-1 - cut]


def was_disturbed(low: float, high: float) -> bool:
    """Return whether measurements of one speed differ by more than they do where nothing else runs."""
    return high > _QUIET * low


class NoiseMeter:
    """What else used the machine since the meter was made."""

    def __init__(self) -> None:
        self._load, self._before = load_average(), _times()

    def sentence(self, what: str, ranges: Sequence[tuple[float, float]]) -> str:
        """Return in a line: the load before, the time stolen by the hypervisor, and the largest range of a speed.

        `ranges` has the least and the most of several measurements of the speed that `what` names. What the system
        doesn't say is left out.
        """
        parts = []
        if self._load is not None:
            parts.append(f"load {self._load:.2f} on {os.cpu_count()} processors before")
        if len(passed := _times() - self._before):
            stolen = passed[_STEAL] / max(passed.sum(), 1)
            parts.append(f"{stolen:.1%} of the processors' time stolen by other machines")
        if ranges:
            parts.append(f"{what} measured within {max(high / low for low, high in ranges) - 1:.1%}")
        return f"noise: {', '.join(parts) or 'not known'}"


def _times() -> NDArray[np.int64]:
    """Return the times that all processors have spent as proc(5) lists them, up to `_STEAL`; none if unknown."""
    with suppress(OSError):
        return np.array(Path("/proc/stat").read_text("ascii").partition("\n")[0].split()[1 : _STEAL + 2], np.int64)
    return np.array([], np.int64)
