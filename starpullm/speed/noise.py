"""How quiet the machine was: what else used it during a measurement, and which ratios are no more than that."""

from __future__ import annotations

import math
from collections.abc import Sequence

import psutil

ENOUGH_VALUES = 6
"""With fewer, `median_interval` is no interval of 95 %, and there is no verdict."""


class NoiseMeter:
    """What else used the machine since the meter was made."""

    def __init__(self) -> None:
        self._load = psutil.getloadavg()[0]
        psutil.cpu_times_percent()  # the next call's percentages are of the time since this one

    def sentence(self, what: str, ranges: Sequence[tuple[float, float]]) -> str:
        """Return in a line: the load before, the time stolen by the hypervisor, and the largest range of a speed.

        `ranges` has the least and the most of several measurements of the speed that `what` names.
        """
        parts = [
            f"load {self._load:.2f} on {psutil.cpu_count()} processors before",
            f"{getattr(psutil.cpu_times_percent(), 'steal', 0.0):.1f}% of their time stolen by other machines",
        ]
        if ranges:
            parts.append(f"{what} measured within {max(high / low for low, high in ranges) - 1:.1%}")
        return f"noise: {', '.join(parts)}"


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
