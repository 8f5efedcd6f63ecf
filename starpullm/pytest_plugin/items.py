"""Which tests are the plugin's, and what it knows of each beyond pytest's own report.

The other files of the plugin call it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

__all__ = ["ENTRY", "FIXTURES", "MARKERS", "RANK_MARKERS", "Entry", "configuration_of", "family_of", "uses_plugin"]

MARKERS = {
    "parity": "every tensor has the bits of a golden record",
    "dependencies": "tasks run in the order that their accesses require",
    "reduction": "errors of sums are within their bounds, and bits as stable as promised",
    "memory": "nothing grows with the number of steps",
    "throughput": "training is as fast as a baseline; only with --benchmark",
    "mutation": "the checks catch a defect that was put into the library",
}
"""Families of checks, in the order of the summary."""

RANK_MARKERS = {
    "mpi": "with --with-mpi the test runs on every rank, in pytest's own processes",
    "over_ranks": "with --with-mpi the test runs on rank 0, and its checks in a job of as many ranks",
}

FIXTURES = frozenset(
    {"starpullm_configuration", "starpullm_check", "starpullm_validation", "starpu_runtime", "trainer", "golden"}
    | {"reference", "starpullm_gate", "task_trace"}
)
"""Whoever asks for one of them uses the plugin."""


@dataclass
class Entry:
    """What the checks of one test told the plugin."""

    configuration: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""


ENTRY = pytest.StashKey[Entry]()


def uses_plugin(item: pytest.Item) -> bool:
    """Return whether a test has a fixture or a marker of the plugin's."""
    return not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) or any(
        item.get_closest_marker(name) for name in MARKERS
    )


def family_of(item: pytest.Item) -> str:
    """Return the test's first marker of the plugin's, or ``"other"``."""
    return next((name for name in MARKERS if item.get_closest_marker(name)), "other")


def configuration_of(item: pytest.Item) -> str:
    """Return what the test was parametrised with, or ``"-"``."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("starpullm_configuration", "-")) if callspec else "-"
