"""One report of several runs, such as those of a night: their tests, how each run ended, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.report.document import Document, new_document, read_document
from starpullm.report.folder import JSON_NAME
from starpullm.report.left_out import NOT_REACHED, LeftOut
from starpullm.report.verdict import verdict_of

PASSED, FAILED, NOTHING, NOT_COMPARABLE, NOT_ENDED = (
    "passed",
    "failed",
    "nothing compared",
    "not comparable",
    "did not end",
)
"""How a run can end."""


@dataclass(frozen=True)
class Run:
    """A run: how it ended, where it took place, its report if it has left one, and the end of its output."""

    name: str
    outcome: str
    """One of the five above."""

    ending: str
    """The same in a sentence."""

    place: str
    document: Document | None
    output: tuple[str, ...] = ()


def read_run(path: Path) -> Run:
    """Return the run of a report: of its folder, or of its JSON file.

    Raises
    ------
    FileError, FormatError
        If it can't be read, or is not the report of one run of checks or measurements.
    """
    document = read_document(path / JSON_NAME if path.is_dir() else path)
    check_mergeable(document, str(path))
    verdict = verdict_of(document)
    if document["state"] == "running" or document["stopped"]:
        outcome = NOT_ENDED
    elif verdict.kind == "nothing":
        outcome = NOT_COMPARABLE if document["exit_status"] == 3 else NOTHING
    else:
        outcome = PASSED if verdict.kind == "passed" else FAILED
    return Run(str(path), outcome, f"{verdict.word}. {verdict.sentence}", document["host"], document)


def check_mergeable(document: Document, name: str) -> None:
    """Raise a ``FormatError`` unless a document is that of one run of checks or measurements."""
    for field, what in (("runs", "several runs"), ("mutation", "mutants")):
        if document[field]:
            raise FormatError(f"{name}: found a report of {what}, expected one of a run of checks or measurements")


def merge(runs: Sequence[Run], arguments: Sequence[str], exit_status: int | None = None) -> Document:
    """Return the document of several runs.

    Raises
    ------
    InvalidArgumentError
        If there is no run, or if two have the same name.
    """
    names = [run.name for run in runs]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice or not runs:
        found = f"{twice[0]} twice" if twice else "none"
        raise InvalidArgumentError(f"reports to merge: found {found}, expected different ones")
    documents = [(run.name, run.document) for run in runs if run.document is not None]
    merged = new_document("starpullm report", arguments)
    merged.update(
        state="ended",
        exit_status=exit_status,
        runs=[_entry(run) for run in runs],
        not_checked=[asdict(entry) for entry in _not_checked(runs)],
    )
    if documents:
        first = [document for _, document in documents]
        merged["time"] = min(document["time"] for document in first)
        merged["host"] = ", ".join(dict.fromkeys(document["host"] for document in first))
        merged["ranks"] = max(document["ranks"] for document in first)
        merged["environment"] = next((found for document in first if (found := document["environment"])), None)
    for name, document in documents:
        merged["selection"] |= {f"{name}: {option}": values for option, values in document["selection"].items()}
        merged["tests"] += [{**test, "run": name} for test in document["tests"]]
        merged["running"] += [f"{name}: {test}" for test in document["running"]]
        merged["notes"] += [f"{name}: {note}" for note in document["notes"]]
        merged["recordings"] += [{**found, "name": f"{found['name']} ({name})"} for found in document["recordings"]]
        merged["throughput"] += document["throughput"]
        merged["history"] += document["history"]
    return merged


def _entry(run: Run) -> dict[str, Any]:
    """Return what the merged document says of a run."""
    known = run.document
    return {
        "name": run.name,
        "outcome": run.outcome,
        "ending": run.ending,
        "place": run.place,
        "output": list(run.output),
        "command": known["command"] if known else "",
        "arguments": known["arguments"] if known else [],
        "ranks": known["ranks"] if known else None,
        "time": known["time"] if known else None,
        "seconds": max(0.0, known["written"] - known["time"]) if known else None,
        "environment": known["environment"] if known else None,
    }


def _not_checked(runs: Sequence[Run]) -> Iterator[LeftOut]:
    """Yield the runs without a complete result, then what all runs leave out, then what some of them do."""
    for run in runs:
        if run.outcome in (NOT_ENDED, NOTHING):
            yield LeftOut(run.name, run.ending)
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run in runs:
        for entry in run.document["not_checked"] if run.document else ():
            groups.setdefault((entry["what"], entry["reason"]), {})[run.name] = entry["tests"]
    reported = sum(run.document is not None for run in runs)
    for everywhere in (True, False):
        for (what, reason), tests in groups.items():
            if (len(tests) == reported) is everywhere:
                names = "" if everywhere else f" ({', '.join(tests)})"
                # The verdict counts the tests of the entry that is called so.
                text = (what, f"{reason}{names}") if what == NOT_REACHED else (f"{what}{names}", reason)
                yield LeftOut(*text, [test for part in tests.values() for test in part])
