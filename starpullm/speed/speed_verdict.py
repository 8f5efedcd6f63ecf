"""How measurements are judged: a change of speed with its interval, and whether the machine was quiet."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.processes.mpirun import load_average

EQUIVALENCE_MARGIN = 0.05
"""The equivalence margin: the slowdown that must be excluded before a build is called unchanged."""

ENOUGH_VALUES = 6
"""With fewer, `interval` excludes nothing with 95 %, and there is no verdict."""

_QUIET = 1.25  # the ratio of two measurements of one limit, at most, where nothing else runs
_STEAL = 7  # which of a processor's times in /proc/stat is the one that other virtual machines had


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


def interval(differences: Sequence[NDArray[np.float64]], tail: float) -> NDArray[np.float64]:
    """Return an estimate of each column's difference, and its confidence interval; both are order statistics.

    The estimate is the median of the averages of all pairs of rows (Hodges and Lehmann), and the interval lies between
    two of these averages, which Wilcoxon's signed-rank test chooses (`excluded_ranks`): the differences need to be
    symmetric, whatever their distribution is. Both are averaged over `differences`. An average strays less than each of
    its parts, so this interval errs on the safe side.

    Each of `differences` has shape (rows, columns). `tail` is the probability, at most, that the true value lies below
    the interval, and that it lies above. The result has shape (3, columns): estimates, lower ends, upper ends. Too few
    rows exclude nothing.
    """
    mean: NDArray[np.float64] = np.mean([_one_interval(paired, tail) for paired in differences], axis=0)
    return mean


def _one_interval(differences: NDArray[np.float64], tail: float) -> NDArray[np.float64]:
    first, second = np.triu_indices(len(differences))
    averages = np.sort((differences[first] + differences[second]) / 2, axis=0)
    cut = excluded_ranks(len(differences), tail)
    ends = averages[[cut - 1, -cut]] if cut else np.full((2, differences.shape[1]), [[-np.inf], [np.inf]])
    return np.stack([np.median(averages, axis=0), *ends])


def excluded_ranks(count: int, tail: float) -> int:
    """Return how many of the least sums of signed ranks of so many values have this probability, at most."""
    probabilities = np.ones(1)
    for rank in range(1, count + 1):  # it counts, or it doesn't
        probabilities = (np.pad(probabilities, (0, rank)) + np.pad(probabilities, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(probabilities), tail, side="right"))


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
