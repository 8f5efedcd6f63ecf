"""The check of memory growth tells a leak from what is freed.

pytest runs it; it needs no native code.
"""

from __future__ import annotations

import mmap

from starpullm.checks.memory import ALLOWED_GROWTH_BYTES, check_growth
from starpullm.checks.result import Outcome


def test_what_is_freed_is_no_growth() -> None:
    def repeat(count: int) -> None:
        for _ in range(count):
            bytearray(b"x" * 100_000)

    result = check_growth("buffers", repeat, warm_up=10, repetitions=100)
    assert result.outcome is Outcome.PASSED
    assert result.measured is not None
    assert result.measured <= ALLOWED_GROWTH_BYTES


def test_what_is_kept_is() -> None:
    kept: list[mmap.mmap] = []

    def repeat(count: int) -> None:
        for _ in range(count):
            kept.append(mmap.mmap(-1, 100_000))  # not what other tests have freed and the allocator has kept
            kept[-1].write(b"x" * 100_000)

    result = check_growth("buffers", repeat, warm_up=10, repetitions=100)
    assert result.outcome is Outcome.FAILED
    assert result.measured is not None
    assert 9e6 < result.measured < 12e6
    assert result.describe() == [
        f"memory growth: failed: {result.measured} bytes over 100 buffers",
        f"  {result.measured / 100:.0f} bytes for each of 100 buffers",
    ]
