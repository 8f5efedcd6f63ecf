"""Which tests use the plugin, and what is kept for each of them in addition to pytest's own report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

MARKERS = {
    "parity": "every tensor has the bits of a golden record",
    "dependencies": "tasks run in the order that their accesses require",
    "reduction": "errors of sums are within their bounds, and bits are as stable as documented",
    "memory": "memory does not grow with the number of steps",
    "throughput": "training is as fast as a baseline; only with --benchmark",
    "mutation": "the checks catch a seeded defect",
}
"""The families of tests, in the order of the summary."""

RANK_MARKERS = {
    "mpi": "with --with-mpi the test runs on every rank, in pytest's own processes",
    "over_ranks": "with --with-mpi the test runs on rank 0, and its checks in a job of as many ranks",
}

FIXTURES = frozenset(
    {"starpullm_configuration", "starpullm_check", "starpullm_validation", "starpu_runtime", "trainer", "golden"}
    | {"reference", "starpullm_gate", "task_trace"}
)
"""A test that requests one of them uses the plugin."""


@dataclass
class Entry:
    """The results of the checks of one test."""

    configuration: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""


ENTRY = pytest.StashKey[Entry]()


def uses_plugin(item: pytest.Item) -> bool:
    """Return whether a test has a fixture or a marker of the plugin."""
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or any(
        item.get_closest_marker(name) for name in MARKERS
    )


def family_of(item: pytest.Item) -> str:
    """Return the first of the plugin's markers that a test has, or ``"other"``."""
    return next((name for name in MARKERS if item.get_closest_marker(name)), "other")


def configuration_of(item: pytest.Item) -> str:
    """Return the runtime configuration that a test is parametrised with, or ``"-"``."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("starpullm_configuration", "-")) if callspec else "-"
