"""Which tests use the plugin, and what is kept for each of them in addition to pytest's own report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

FAMILIES = {
    "parity": "every tensor has the bits of a golden record",
    "dependencies": "tasks run in the order that their accesses require",
    "reduction": "errors of sums are within their bounds, and bits are as stable as documented",
    "memory": "memory does not grow, whatever is repeated, and a lack of memory is reported",
    "kernels": "kernels of every SIMD level have the bits of the plain ones",
    "interface": "the library describes the machine and its threads correctly",
    "scenario": "trainers have a plain sequential model's bits in random sequences of calls",
    "fuzz": "StarPU runs random programs as a serial interpreter does",
    "throughput": "training is as fast as a baseline; only with --starpullm-benchmark",
}
"""The families of tests, in the order of the summary; the marker of each has the prefix ``starpullm_``."""

RANK_MARKERS = {
    "mpi": "over ranks the test runs on every rank, in pytest's own processes",
    "starpullm_over_ranks": "over ranks the test runs on rank 0, and its checks in a job of as many ranks",
}

FIXTURES = frozenset(
    f"starpullm_{name}" for name in "check configuration gate golden reference runtime trace trainer validation".split()
)
"""A test that requests one of them uses the plugin."""

_COMPARED_BY_TESTS = frozenset(f"starpullm_{name}" for name in "golden program reference runtime trace trainer".split())
"""Fixtures that give something to compare in the test itself."""

PREFIX = "starpullm."
"""Of the names of all properties of the plugin in JUnit XML."""


@dataclass
class Entry:
    """What one attempt at a test has found; as plain values, it is an attribute of the test's reports."""

    family: str
    configuration: str
    results: list[dict[str, Any]] = field(default_factory=list)
    """Of its checks; the outcome of one that has not ended is *no result*."""
    ending: str = ""
    """How a check has ended that has no result, in a few words."""
    reruns: int = 0
    """The attempts before this one; other plugins repeat tests."""

    def properties(self) -> Iterator[tuple[str, object]]:
        """Yield names and values, which pytest writes into JUnit XML: of the test, and of each of its checks."""
        yield f"{PREFIX}family", self.family
        yield f"{PREFIX}placement", self.configuration
        if self.reruns:
            yield f"{PREFIX}reruns", self.reruns
        names: list[str] = []
        for result in self.results:
            name = str(result["check"]).replace(" ", "_")
            names.append(name)
            check = f"{PREFIX}{name}" + (f".{names.count(name)}" if names.count(name) > 1 else "")
            yield f"{check}.verdict", result["outcome"]
            numbers = {name: result[name] for name in ("compared", "measured", "limit")} | result["facts"]
            for number, value in numbers.items():
                if isinstance(value, int | float | str):
                    yield f"{check}.{number}", value
        if self.ending:
            yield f"{PREFIX}verdict", self.ending


_ENTRY = pytest.StashKey[Entry]()

REFUSAL = pytest.StashKey[str]()
"""In the configuration: why the plugin's options can't be satisfied."""


def uses_plugin(item: pytest.Item) -> bool:
    """Return whether a test has a fixture or a marker of the plugin."""
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or any(
        item.get_closest_marker(f"starpullm_{name}") for name in FAMILIES
    )


def compares_in_test(item: pytest.Item) -> bool:
    """Return whether a test that makes no check may pass: it compares by itself what a fixture gives it.

    A test that asks for checks, or is counted in a family, has to make one.
    """
    fixtures = getattr(item, "fixturenames", ())
    if not _COMPARED_BY_TESTS.isdisjoint(fixtures):
        return True
    return "starpullm_check" not in fixtures and family_of(item) == "other"


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist, whose controller reports for it."""
    return hasattr(config, "workerinput")


def begin_attempt(item: pytest.Item) -> Entry:
    """Forget what an earlier attempt at a test has found."""
    known = item.stash.get(_ENTRY, None)
    entry = item.stash[_ENTRY] = new_entry(item, 0 if known is None else known.reruns + 1)
    return entry


def new_entry(item: pytest.Item, reruns: int = 0) -> Entry:
    """Return what is known of a test before it has begun."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    place = parameters.get("starpullm_configuration", "-")
    entry = Entry(family_of(item), "unknown" if isinstance(place, Exception) else str(place), reruns=reruns)
    if "item" in parameters:
        from starpullm.checks.suite_items import Item

        if isinstance(of_suite := parameters["item"], Item):
            entry.configuration = str(of_suite.placement or "all")
            entry.results.append(of_suite.unfinished().as_json())
    return entry


def entry_of(item: pytest.Item) -> Entry:
    """Return what the present attempt at a test has found."""
    return item.stash.get(_ENTRY, None) or begin_attempt(item)


def family_of(item: pytest.Item) -> str:
    """Return the first of the plugin's markers that a test has, or ``"other"``."""
    return next((name for name in FAMILIES if item.get_closest_marker(f"starpullm_{name}")), "other")
