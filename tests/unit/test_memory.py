"""Which allocations that are left count as leaks.

pytest runs it; it needs no native code. tests/native/test_memory.py has real leaks.
"""

from __future__ import annotations

import pytest

from starpullm.binding import allocations
from starpullm.binding.allocations import Site
from starpullm.checks.memory import GrowthResult, Leak, check_growth, leaking_places
from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError, StateError

OWN, OTHER = "/lib/own.so", "/lib/other.so"


def site(module: str, offset: int, live: int, thread: int = 1, each: int = 16) -> Site:
    return Site(module, "function", offset, offset, thread, made=100, live=live, live_bytes=live * each)


@pytest.mark.parametrize(
    ("sites", "offsets"),
    [
        ([], []),
        ([site(OWN, 1, 0), site(OTHER, 2, 0)], []),
        # A thread's scratch memory; and the same place in two threads.
        ([site(OWN, 1, 1), site(OWN, 1, 1, thread=2)], []),
        ([site(OWN, 1, 2)], [1]),
        ([site(OWN, 1, 0), site(OWN, 1, 2, thread=2)], [1]),
        # A pool keeps less than one for each of 100 repetitions.
        ([site(OTHER, 2, 99)], []),
        ([site(OTHER, 2, 100)], [2]),
        ([site(OTHER, 2, 50), site(OTHER, 2, 50, thread=2)], [2]),
        ([site(OTHER, 2, 50), site(OTHER, 3, 50)], []),
        # The library's come first, then the largest.
        (
            [site(OTHER, 2, 100), site(OTHER, 3, 100, each=32), site(OWN, 1, 100), site(OWN, 9, 100, each=8)],
            [1, 9, 3, 2],
        ),
    ],
)
def test_what_counts_as_a_leak(sites: list[Site], offsets: list[int]) -> None:
    found = leaking_places(sites, OWN, 100)
    assert [of_place[0].offset for of_place in found] == offsets
    assert sorted(entry for of_place in found for entry in of_place) == sorted(
        entry for entry in sites if entry.offset in offsets
    )


def result(compared: int, *leaks: Leak) -> GrowthResult:
    return GrowthResult(
        name="memory growth",
        outcome=Outcome.FAILED if leaks else Outcome.PASSED,
        finding="found",
        compared=compared,
        measured=len(leaks),
        repeated="steps",
        repetitions=100,
        leaks=leaks,
    )


def test_leaks_in_words() -> None:
    leaks = (Leak("own.so, submit", 100, 1600, 100), Leak("threads", 100, None, 100))
    assert result(5, *leaks).describe() == [
        "memory growth: failed: found",
        "  own.so, submit: 16 bytes a repetition, 100 left of 100 repetitions",
        "  threads: 100 left of 100 repetitions",
    ]


def test_no_allocation_is_no_verdict() -> None:
    with pytest.raises(InvalidArgumentError, match="memory growth: nothing was compared"):
        result(0)


def test_a_process_that_counts_nothing_is_refused() -> None:
    """Before anything is repeated."""
    repeated: list[int] = []
    with pytest.raises(StateError, match="isn't preloaded"):
        check_growth("steps", repeated.append, warm_up=1, repetitions=1, renewals=1)
    assert repeated == []


def test_what_is_preloaded_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocations, "find_library", lambda: "/lib/counts.so")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert allocations.preloading() == {"LD_PRELOAD": "/lib/counts.so"}
    monkeypatch.setenv("LD_PRELOAD", "/lib/a.so:/lib/b.so")
    assert allocations.preloading() == {"LD_PRELOAD": "/lib/counts.so:/lib/a.so:/lib/b.so"}
