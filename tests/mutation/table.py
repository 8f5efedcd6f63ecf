"""The table of seeded defects: which check must catch each, which was the first that did; and false alarms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from starpullm.machine import inspect_machine

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

    def merged_into(self, path: Path) -> Table:
        """Return the table of a file with this one's results added, and write it there."""
        whole = Table()
        if path.exists():
            whole.add_values(json.loads(path.read_text("utf-8")))
        whole.add_values(self.values())
        path.write_text(json.dumps(whole.values(), indent=1) + "\n", "utf-8")
        return whole

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

    def markdown(self) -> str:
        """Return docs/mutations.md, with the defects by kind."""
        machine = inspect_machine()
        rows = sorted(self._rows.values(), key=lambda row: (row.kind, row.name))
        lines = [
            f"| [`{row.name}`](../tests/mutation/defects/{row.name}.patch) | {row.kind} | {row.defect} | {row.shows} | "
            f"{row.expected} | {row.first or '—'} | {'yes' if row.is_caught else '**no**'} | {row.seconds:.1f} | "
            f"{row.build_seconds:.1f} |"
            for row in rows
        ]
        return _PAGE.format(
            rows="\n".join(lines),
            clean="\n".join(f"- {alarms}" for alarms in self._clean.values()),
            summary=self.summary() if rows else "No defect was tried",
            cores=machine.cores,
            processor=machine.processor,
        )


_PAGE = """# Seeded defects: how the checks are tested

<!-- Made by tests/mutation: see the command below. -->

Each patch in [tests/mutation/defects](../tests/mutation/defects) puts one defect into the native library. For every
patch, the tests apply it to a copy of the sources, build the library, and run the project's checks on it in the order
of their cost until one fails; then they run the check that the patch names, if that was another. A defect counts as
caught if the check that its patch names fails. A check that does not end has caught nothing, unless the patch names the
time limit.

The defects here were thought up by people who know the checks. [mutants.md](mutants.md) has mutants that a tool makes.

<!-- not run: CI runs the first; the second takes long -->
```
pytest tests/mutation                   # a few defects: the patches with "Quick: yes"
pytest tests/mutation -m mutation       # all defects
```

## Results

{summary}. Measured on {cores} cores ({processor}).

"Seconds" is the time until the first check failed, the start of its processes included. "Build" is the CPU time of
compiling the changed objects and linking the library; the other objects come from one build without a defect, which
later runs use again.

| defect | kind | what is wrong | where it shows | must be caught by | caught first by | caught | seconds | build |
|---|---|---|---|---|---|---|---|---|
{rows}

A wrong access mode or a lost dependency may show as wrong bits first, because tasks then overtake each other; but this
depends on timing and does not happen in every run. The checks of accesses and of StarPU's graph see such a defect in
every run.

## False alarms

The same checks on a library without a defect:

{clean}

This page is made by

<!-- not run: takes hours -->
```
pytest tests/mutation -m mutation --mutation-repetitions 200 --mutation-results mutations.json \\
    --mutation-table docs/mutations.md
```

The command can be split with `-k`: each run adds its results to the JSON file.

`--starpullm-library PATH` names a library that is checked in place of the installed one. Libraries with a defect are
always built from the checkout's sources.

## Your own patches

<!-- not run: DIR is the reader's -->
```
pytest tests/mutation --mutation-patches DIR
```

tries every patch `DIR/*.patch` instead of the project's. A patch is the output of `git diff` for files below
`native/src` or `native/include`, after a header of these lines and an empty line:

```
Kind: arithmetic
Defect: gelu_forward has 0.0447 for 0.044715
Shows: vector kernels
Caught-by: parity
```

`Caught-by` is a check's name in `CHECKS` of `tests/mutation/laboratory.py`, or `time limit`. A line `Quick: yes` may
follow: such a patch is also tried without `-m mutation`. The file's name is the defect's name. A patch can change C
files and headers, but cannot add a C file. It is an error if the library with the patch has the same bytes as without.

To build a library with a patch and try it by hand:

<!-- not run: compiles; tests/mutation does the same with each patch -->
```
python -m tests.mutation.mutants tests/mutation/defects/gelu_constant.patch -o libstarpullm.so
STARPULLM_LIB=$PWD/libstarpullm.so starpullm parity tiny
```

## Renewing a patch

A patch that no longer applies fails its test `test_patch_applies`, which shows the file and the lines that were not
found. In the root of the checkout,

<!-- not run: changes patches of the checkout -->
```
python -m tests.mutation.renew
```

writes every patch of `defects` and `sample` anew that still applies with changed context, and keeps its header. (It
needs the program `patch`.)
`--moved OLD=NEW` says that a file has another name now, and can be repeated. For a patch that does not apply even so,
the command names a directory with a copy of the sources. Make the change there by hand, in `b/`, and run

<!-- not run: changes patches of the checkout -->
```
python -m tests.mutation.renew tests/mutation/defects/NAME.patch --from DIRECTORY
```

Then test the patch: `pytest tests/mutation -m mutation -k NAME`.
"""
