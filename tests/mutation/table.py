"""The table of seeded defects: which check was to catch each, which was the first that did, and false alarms.

conftest.py shows it at the end of a run, and writes it for docs/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from starpullm.machine import inspect_machine

__all__ = ["Alarms", "Row", "Table"]


@dataclass(frozen=True)
class Row:
    """One defect; ``is_caught`` says whether the check that was to catch it did, first or after another."""

    name: str
    kind: str
    sentence: str
    expected: str
    first: str | None
    finding: str
    is_caught: bool
    seconds: float


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

    def merged_into(self, path: Path) -> Table:
        """Return the table of a file with this one's results added, and write it there."""
        whole = Table()
        if path.exists():
            stored = json.loads(path.read_text("utf-8"))
            for values in stored["defects"]:
                whole.add(Row(**values))
            for values in stored["clean"]:
                whole.add(Alarms(**values))
        for row in self._rows.values():
            whole.add(row)
        for alarms in self._clean.values():
            whole.add(alarms)
        values = {
            "defects": [asdict(row) for row in whole._rows.values()],
            "clean": [asdict(alarms) for alarms in whole._clean.values()],
        }
        path.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
        return whole

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
        """Return how many were caught, and how fast."""
        seconds = [row.seconds for row in self._rows.values()]
        caught = sum(row.is_caught for row in self._rows.values())
        return (
            f"{caught} of {len(seconds)} caught; the median defect in {median(seconds):.1f} s, all together in "
            f"{sum(seconds):.0f} s"
        )

    def markdown(self, order: list[str]) -> str:
        """Return docs/mutations.md, with the defects in the given order."""
        machine = inspect_machine()
        rows = [self._rows[name] for name in order if name in self._rows]
        lines = [
            f"| `{row.name}` | {row.kind} | {row.sentence} | {row.expected} | {row.first or '—'} | "
            f"{'yes' if row.is_caught else '**no**'} | {row.seconds:.1f} |"
            for row in rows
        ]
        return _PAGE.format(
            rows="\n".join(lines),
            clean="\n".join(f"- {alarms}" for alarms in self._clean.values()),
            summary=self.summary() if rows else "No defect was tried",
            cores=machine.cores,
            processor=machine.processor,
        )


_PAGE = """# Seeded defects: the checks are checked

<!-- Made by tests/mutation: see the commands below. -->

A build of the library with `STARPULLM_DEFECTS` has defects on purpose (`native/src/defects_table.h`), of which the
environment variable `STARPULLM_DEFECT` chooses one when the runtime starts. No other build has a trace of them. For
every defect the project's checks run in the order of their cost until one catches it; then the check that was to catch
it, if that was another. This page is made by

```
pytest tests/mutation -m mutation --mutation-repetitions 200 --mutation-results mutations.json \\
    --mutation-table docs/mutations.md
```

which can be split with `-k`: results are added to the file. Without `-m mutation` a spread of eight defects is tried.

**{summary}.**

Seconds are those until the first check caught it, its processes' start included, on {cores} cores
({processor}) with nothing else to do.

| defect | kind | what is wrong | to be caught by | caught first by | caught | seconds |
|---|---|---|---|---|---|---|
{rows}

`time limit` is a check that didn't end. *Caught* means that the check in the fourth column did, whichever was first. A
wrong declaration may show as wrong bits first: tasks then overtake each other, in some runs and not in others. What
sees it in every run is the check that looks at accesses, or at the runtime's graph.

## False alarms

The same checks on a library without a defect:

{clean}
"""
