"""Which allocations that are left count as leaks.

pytest runs it; it needs no native code. tests/native/test_memory.py has real leaks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding import allocations
from starpullm.binding.allocations import Site
from starpullm.checks import leaks
from starpullm.checks.leaks import OBJECTS_KEPT, allocated_at, find_growth, growing_resources, leaking_places
from starpullm.checks.source_line import source_line
from starpullm.errors import StateError

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


def test_a_process_that_counts_nothing_is_refused() -> None:
    """Before anything is repeated."""
    repeated: list[int] = []
    with pytest.raises(StateError, match="isn't preloaded"):
        find_growth("steps", repeated.append, warm_up=1, repetitions=1, renewals=1)
    assert repeated == []


def test_what_is_preloaded_already_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocations, "find_library", lambda: "/lib/counts.so")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert allocations.preloading() == {"LD_PRELOAD": "/lib/counts.so"}
    monkeypatch.setenv("LD_PRELOAD", "/lib/a.so:/lib/b.so")
    assert allocations.preloading() == {"LD_PRELOAD": "/lib/counts.so:/lib/a.so:/lib/b.so"}
    refuses = Path("/lib/refuses.so")
    assert allocations.preloading(refuses) == {"LD_PRELOAD": "/lib/counts.so:/lib/refuses.so:/lib/a.so:/lib/b.so"}


# ---- Growth, with sites that are made by hand ----


class Counted:
    """Stands for `starpullm.binding.allocations`: what was called in which order, and the sites that are left."""

    def __init__(self, *sites: list[Site]) -> None:
        self.calls: list[str] = []
        self._sites = list(sites)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def sites(self) -> list[Site]:
        return self._sites.pop(0) if len(self._sites) > 1 else self._sites[0]


def grow(
    monkeypatch: pytest.MonkeyPatch, counted: Counted, repeat: Callable[[int], None] = lambda number: None
) -> dict[str, Any]:
    monkeypatch.setattr(leaks, "allocations", counted)
    monkeypatch.setattr(leaks, "find_library", lambda: OWN)
    monkeypatch.setattr(leaks, "OBJECTS_KEPT", 1000)  # this process does other things too

    def called(number: int) -> None:
        counted.calls.append(f"repeat {number}")
        repeat(number)

    return find_growth("steps", called, warm_up=3, repetitions=10, renewals=4)


def test_only_repetitions_are_counted_and_renewals_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted([site(OWN, 1, 1), site(OWN, 2, 0), site(OTHER, 3, 9)])
    found = grow(monkeypatch, counted)
    assert counted.calls == ["start", "repeat 3", "start", "repeat 5", "repeat 5", "stop", "repeat 4"]
    assert found == {"compared": 200, "findings": [], "note": "10 steps"}


def test_what_is_freed_a_little_later_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    found = grow(monkeypatch, Counted([site(OWN, 1, 2)], [site(OWN, 1, 2)], [site(OWN, 1, 0)]))
    assert (found["findings"], found["compared"]) == ([], 100)


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ("echo submit_step; echo submit.c:12", "own.so, submit_step (submit.c:12)"),
        ("echo submit_step; echo '??:0'", "own.so, submit_step"),
        ("echo '??'; echo '??:0'", "own.so, exported"),
        ("echo submit_step; exit 1", "own.so, exported"),
        (
            f'test "$*" = "-f -C -e {OWN} 0x1f" && test -z "$DEBUGINFOD_URLS" && echo asked; echo "/src/x.c:7 (more)"',
            "own.so, asked (x.c:7)",
        ),
    ],
)
def test_symbols_name_a_place_that_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, place: str
) -> None:
    program = tmp_path / "addr2line"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DEBUGINFOD_URLS", "https://symbols")
    source_line.cache_clear()
    assert allocated_at(Site("/lib/own.so", "exported", 0x1F, 0x1F, 1, made=9, live=9, live_bytes=9)) == place


def test_a_place_without_symbols_is_named_by_its_offset() -> None:
    source_line.cache_clear()
    places = [allocated_at(Site(module, "", 0x1F, 0x1F, 1, made=9, live=9, live_bytes=9)) for module in (OWN, "")]
    assert places == ["own.so, 0x1f", "unknown module, 0x1f"]


def resources(objects: int, files: int, threads: int) -> dict[str, int]:
    return {"objects of Python": objects, "file descriptors": files, "threads": threads}


@pytest.mark.parametrize(
    ("middle", "last", "names"),
    [
        ((1000, 50, 8), (1000, 50, 8), []),
        ((1000, 54, 8), (1000, 60, 8), []),  # once, and not in both halves
        ((1000, 55, 8), (1000, 59, 8), []),
        ((1000, 55, 8), (1000, 60, 8), ["file descriptors: 10"]),
        ((1014, 50, 13), (1030, 50, 18), ["threads: 10"]),
        ((1015, 50, 8), (1030, 50, 8), ["objects of Python: 30"]),
        ((1015, 50, 8), (1029, 50, 8), []),
    ],
)
def test_a_resource_leaks_that_grows_in_both_halves(
    middle: tuple[int, int, int], last: tuple[int, int, int], names: list[str]
) -> None:
    counts = [resources(1000, 50, 8), resources(*middle), resources(*last)]
    assert list(growing_resources(counts, 10, OBJECTS_KEPT)) == [f"{name} left of 10 repetitions" for name in names]
