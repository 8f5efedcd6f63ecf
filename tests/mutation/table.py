"""The table of seeded defects: which check must catch each, which was the first that did; and false alarms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Alarms", "Row", "Table"]


@dataclass(frozen=True)
class Row:
    """One defect.

    Parameters
    ----------
    name, kind, defect, shows, expected
        As in its patch; `expected` is the check that must catch it.
    first
        The check that was the first to catch it; None: no check did.
    finding
        What that check said.
    is_caught
        Whether the expected check caught it, as the first or after another.
    seconds
        Until the first check caught it.
    build_seconds
        CPU seconds of building the library with it.
    """

    name: str
    kind: str
    defect: str
    shows: str
    expected: str
    first: str | None
    finding: str
    is_caught: bool
    seconds: float
    build_seconds: float


@dataclass(frozen=True)
class Alarms:
    """Repetitions of checks on a library without a defect."""

    what: str
    repetitions: int
    checks: int
    alarms: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.repetitions} repetitions, {self.checks} checks, {self.alarms} false alarms, "
            f"{self.seconds:.0f} s"
        )

    def __add__(self, other: Alarms) -> Alarms:
        return Alarms(
            self.what,
            self.repetitions + other.repetitions,
            self.checks + other.checks,
            self.alarms + other.alarms,
            self.seconds + other.seconds,
        )


class Table:
    """What was found, by one run of pytest or by several."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._clean: dict[str, Alarms] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing was tried."""
        return not self._rows and not self._clean

    def add(self, entry: Row | Alarms) -> None:
        """Take a result: a defect's in the place of an earlier one, repetitions in addition to earlier ones."""
        if isinstance(entry, Row):
            self._rows[entry.name] = entry
        else:
            earlier = self._clean.get(entry.what)
            self._clean[entry.what] = earlier + entry if earlier else entry

    def merge_into(self, path: Path) -> None:
        """Add the results to those of a file."""
        whole = Table()
        if path.exists():
            whole.add_values(json.loads(path.read_text("utf-8")))
        whole.add_values(self.values())
        path.write_text(json.dumps(whole.values(), indent=1) + "\n", "utf-8")

    def values(self) -> dict[str, list[dict[str, Any]]]:
        """Return all results, as JSON has them."""
        return {
            "defects": [asdict(row) for row in self._rows.values()],
            "clean": [asdict(alarms) for alarms in self._clean.values()],
        }

    def add_values(self, values: dict[str, list[dict[str, Any]]]) -> None:
        """Add what `values` of another table returned."""
        for row in values["defects"]:
            self.add(Row(**row))
        for alarms in values["clean"]:
            self.add(Alarms(**alarms))

    def lines(self) -> Iterator[str]:
        """Yield it for a terminal."""
        width = max(map(len, self._rows), default=0)
        for row in self._rows.values():
            caught = "caught" if row.is_caught else "NOT CAUGHT"
            also = "" if row.first == row.expected else f" (to be caught by {row.expected})"
            yield f"{row.name:{width}}  {caught}, first by {row.first or 'nothing'}{also}, {row.seconds:.1f} s"
        if self._rows:
            yield self.summary()
        yield from map(str, self._clean.values())

    def summary(self) -> str:
        """Return how many were caught, how fast, and what their libraries cost."""
        seconds = [row.seconds for row in self._rows.values()]
        builds = [row.build_seconds for row in self._rows.values()]
        caught = sum(row.is_caught for row in self._rows.values())
        return (
            f"{caught} of {len(seconds)} caught; the median defect in {median(seconds):.1f} s, all together in "
            f"{sum(seconds):.0f} s; building their libraries took {sum(builds):.0f} CPU seconds, "
            f"{median(builds):.1f} s for the median defect and {max(builds):.1f} s for the slowest"
        )
