"""The comparison of vector versions with libm: what it counts, when it says passed, and that a failure ends it.

The native comparison of one part is replaced by functions that know what they should find.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from starpullm.binding import prototypes
from starpullm.checks.kernels.libm import NUM_INPUTS, check_libm
from starpullm.checks.result import Outcome

Compare = Callable[[str, str, int, int], tuple[int, int | None]]


class Compared:
    """Stands for `prototypes.prove_libm`: keeps the ranges, and finds differences at the inputs given."""

    def __init__(self, *different: int) -> None:
        self.different = different
        self.ranges: list[tuple[int, int]] = []
        self.names: set[tuple[str, str]] = set()

    def __call__(self, level: str, function: str, begin: int, end: int) -> tuple[int, int | None]:
        self.names.add((level, function))
        self.ranges.append((begin, end))
        found = [pattern for pattern in self.different if begin <= pattern < end]
        return len(found), min(found, default=None)


@pytest.fixture
def replace(monkeypatch: pytest.MonkeyPatch) -> Callable[[Compare], None]:
    return lambda compare: monkeypatch.setattr(prototypes, "prove_libm", compare)


@pytest.mark.parametrize("threads", [1, 3])
def test_all_inputs_once(replace: Callable[[Compare], None], threads: int) -> None:
    compared = Compared()
    replace(compared)
    told: list[int] = []
    result = check_libm("tanhf", "avx2", threads=threads, progress=told.append)
    ranges = sorted(compared.ranges)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == NUM_INPUTS
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert compared.names == {("avx2", "tanhf")}
    assert sum(told) == NUM_INPUTS
    assert result.outcome is Outcome.PASSED
    assert (result.compared, result.measured, result.limit) == (NUM_INPUTS, 0, 0)
    assert result.facts["first_difference"] is None
    assert result.lines() == ["tanhf of avx2: passed: 4,294,967,296 inputs compared"]


def test_differences(replace: Callable[[Compare], None]) -> None:
    replace(Compared(0xFFFFFFFF, 0x3F800123, 0x3F800124, 0x7F000000))
    result = check_libm("expf", "neon")
    assert result.outcome is Outcome.FAILED
    assert (result.measured, result.facts["first_difference"]) == (4, 0x3F800123)
    assert result.sentence.endswith("(4 in 4,294,967,296 inputs): the first of input 0x3f800123")


def test_some_inputs_are_no_proof(replace: Callable[[Compare], None]) -> None:
    compared = Compared(0xFFFFFFFF)
    replace(compared)
    result = check_libm("coshf", "avx512", every=1000)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert result.compared == sum(end - begin for begin, end in compared.ranges) < NUM_INPUTS / 900
    assert result.sentence == f"{result.compared:,} of 4,294,967,296 inputs have the same bits"
    replace(Compared(0))
    assert check_libm("coshf", "avx512", every=1000).outcome is Outcome.FAILED


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_in_any_thread_stops_all(replace: Callable[[Compare], None], failing: int) -> None:
    compared = Compared()
    threads: list[int] = []
    both = threading.Barrier(2, timeout=60)

    def compare(level: str, function: str, begin: int, end: int) -> tuple[int, int | None]:
        if threading.get_ident() not in threads:
            threads.append(threading.get_ident())
            both.wait()
        if threading.get_ident() == threads[failing]:
            raise ValueError("refused")
        return compared(level, function, begin, end)

    replace(compare)
    with pytest.raises(ValueError, match="refused"):
        check_libm("expf", "avx2", threads=2, progress=lambda _: time.sleep(0.001))
    assert len(compared.ranges) < 1000
