"""The runs that a merged report is made of, each with the counts of its tests, and the machines that they ran on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starpullm.report.document import Document
from starpullm.report.merge import FAILED, NOT_ENDED, NOTHING, PASSED

_KINDS = {PASSED: "passed", FAILED: "failed"}


@dataclass(frozen=True)
class RunRow:
    """A row of the table of runs; ``kind`` is passed, failed or undecided."""

    kind: str
    name: str
    outcome: str
    ending: str
    output: str
    place: str
    ranks: int | None
    counts: Mapping[str, int]
    time: float | None
    seconds: float | None
    command: str

    @property
    def needs_a_look(self) -> bool:
        """Whether something went wrong that none of its failed tests shows."""
        return self.outcome in (NOT_ENDED, NOTHING) or (self.outcome == FAILED and not self.counts["failed"])


@dataclass(frozen=True)
class Environment:
    """What ``starpullm doctor`` shows, of the runs of these names; without names, of the only run."""

    names: tuple[str, ...]
    machine: Mapping[str, Any]


def run_rows(document: Document) -> list[RunRow]:
    """Return a row for each run; none in the report of one run."""
    counts = {run["name"]: Counter[str]() for run in document["runs"]}
    for test in document["tests"]:
        if test.get("run") in counts:
            counts[test["run"]][test["outcome"]] += 1
    return [
        RunRow(
            kind=_KINDS.get(run["outcome"], "undecided"),
            counts=counts[run["name"]],
            output="\n".join(run["output"]),
            command=" ".join([run["command"], *run["arguments"]]),
            **{name: run[name] for name in ("name", "outcome", "ending", "place", "ranks", "time", "seconds")},
        )
        for run in document["runs"]
    ]


def environments(document: Document) -> list[Environment]:
    """Return what is known of each machine and build; runs with the same ones are put together."""
    if not document["runs"]:
        return [Environment((), document["environment"])] if document["environment"] else []
    found: list[tuple[list[str], Mapping[str, Any]]] = []
    for run in document["runs"]:
        machine = run["environment"]
        if machine:
            same = next((names for names, other in found if other == machine), None)
            if same is None:
                found.append(([run["name"]], machine))
            else:
                same.append(run["name"])
    return [Environment(tuple(names), machine) for names, machine in found]
