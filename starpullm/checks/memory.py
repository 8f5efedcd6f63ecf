"""Resident memory doesn't grow with the number of repetitions."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from starpullm.checks.result import CheckResult, passed_if

ALLOWED_GROWTH_BYTES = 1 << 19
"""Up to 40 KB were measured without a leak; the rest is a reserve for the allocator and for Python."""


@dataclass(frozen=True, kw_only=True)
class GrowthResult(CheckResult):
    """How much resident memory grew, in bytes; ``compared`` counts repetitions."""

    repeated: str

    def detail_lines(self) -> Iterator[str]:
        """Yield the growth per repetition."""
        assert self.measured is not None
        yield f"{self.measured / self.compared:.0f} bytes for each of {self.compared} {self.repeated}"


def check_growth(repeated: str, repeat: Callable[[int], None], *, warm_up: int, repetitions: int) -> GrowthResult:
    """Compare the resident memory of this process before and after repetitions.

    Parameters
    ----------
    repeated
        What is repeated, for messages; a plural.
    repeat
        Called with a number of repetitions, which it makes.
    warm_up
        Number of repetitions before the measurement, in which everything is allocated that is allocated once.
    repetitions
        Number of measured repetitions; large enough that leaks would exceed ``ALLOWED_GROWTH_BYTES``.
    """
    repeat(warm_up)
    before = _resident_bytes()
    repeat(repetitions)
    growth = _resident_bytes() - before
    return GrowthResult(
        name="memory growth",
        outcome=passed_if(growth <= ALLOWED_GROWTH_BYTES),
        finding=f"{growth} bytes over {repetitions} {repeated}",
        compared=repetitions,
        measured=growth,
        limit=ALLOWED_GROWTH_BYTES,
        repeated=repeated,
    )


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
