"""One report of several runs, such as those of a night or of a scheduler's jobs, and how each of them ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.files.json_reader import read_json
from starpullm.report.document import JSON_NAME, Document, check_type, grouped, new_document, read_document
from starpullm.report.left_out import LeftOut
from starpullm.report.verdict import verdict_of

OUTCOMES = ("passed", "failed", "nothing compared", "not comparable", "did not end")
"""How a run can end, by the exit status that the summary of a scheduler's jobs has for it."""

PASSED, FAILED, NOTHING, NOT_COMPARABLE, NOT_ENDED = OUTCOMES


class Run(NamedTuple):
    """A run: how it ended (one of `OUTCOMES`, and a sentence), where, its report if any, and the end of its output."""

    name: str
    outcome: str
    ending: str
    place: str
    document: Document | None = None
    output: tuple[str, ...] = ()


def read_run(path: Path) -> Run:
    """Return the run of a report: of its folder, or of its JSON file."""
    document = _read_one(path / JSON_NAME if path.is_dir() else path)
    verdict = verdict_of(document)
    if document["state"] == "running" or document["stopped"]:
        outcome = NOT_ENDED
    elif verdict.kind in (PASSED, FAILED):
        outcome = verdict.kind
    else:  # speeds within noise are no failure
        outcome = NOTHING if verdict.kind == "nothing" and document["exit_status"] != 3 else NOT_COMPARABLE
    return Run(str(path), outcome, f"{verdict.word}. {verdict.sentence}", document["host"], document)


def _read_one(path: Path) -> Document:
    document = read_document(path)
    if document["runs"]:
        raise FormatError(f"{path}: found a report of several runs, expected one of a run of checks or measurements")
    return document


def merge(runs: Sequence[Run], arguments: Sequence[str], exit_status: int | None = None) -> Document:
    """Return the document of several runs."""
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
    return merged


def _entry(run: Run) -> dict[str, Any]:
    """Return what the merged document says of a run."""
    entry, known = run._asdict(), run.document or {"command": "", "arguments": []}
    del entry["document"]
    entry |= {name: known.get(name) for name in ("command", "arguments", "ranks", "time", "environment")}
    seconds = max(0.0, known["written"] - known["time"]) if run.document else None
    return {**entry, "output": list(run.output), "seconds": seconds}


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
                yield LeftOut(f"{what}{names}", reason, [test for part in tests.values() for test in part])


def run_rows(document: Document) -> list[dict[str, Any]]:
    """Return the runs of a merged report, each with the counts of its tests by outcome.

    ``kind`` is passed, failed or undecided. ``is_unexplained``: something went wrong that no failed test shows.
    """
    tests = grouped(document["tests"], lambda test: test.get("run"))
    rows = []
    for run in document["runs"]:
        counts, outcome = Counter(test["outcome"] for test in tests.get(run["name"], ())), run["outcome"]
        kind = outcome if outcome in (PASSED, FAILED) else "undecided"
        unexplained = outcome in (NOT_ENDED, NOTHING) or (outcome == FAILED and not counts["failed"])
        rows.append({**run, "kind": kind, "counts": counts, "is_unexplained": unexplained})
    return rows


def environments(document: Document) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Return what is known of each machine and build, with the names of the runs on it; of one run without names."""
    if not document["runs"]:
        return [([], document["environment"])] if document["environment"] else []
    known = [run for run in document["runs"] if run["environment"]]
    same = grouped(known, lambda run: json.dumps(run["environment"], sort_keys=True))
    return [([run["name"] for run in runs], runs[0]["environment"]) for runs in same.values()]


class Part(TypedDict):
    """A part of a job: ``outcome`` is a number of `OUTCOMES`, ``report`` the folder that it has left."""

    name: str
    outcome: Literal[0, 1, 2, 3, 4]
    ending: str
    report: NotRequired[str]
    log_end: NotRequired[list[str]]


class Job(TypedDict):
    """A job of the scheduler."""

    name: str
    id: str
    nodes: str
    restarts: int
    outcome: Literal[0, 1, 2, 3, 4]
    meaning: str
    parts: list[Part]


class Summary(TypedDict):
    """What ``ci/slurm/summary.py`` writes."""

    version: Literal[1]
    status: Literal[0, 1, 2, 3, 4]
    jobs: list[Job]


def read_jobs(path: Path) -> tuple[list[Run], int]:
    """Return the runs of all jobs of a summary, and the exit status of the whole.

    A part of a job is a run. A job that left no part, or that did not end although its parts did, is a run too. A
    report that can't be read is named in the ending of its run.
    """
    summary: Summary = read_json(path)
    check_type(summary, Summary, f"{path}: expected the summary.json of ci/slurm")
    return [run for job in summary["jobs"] for run in _runs(job, path.parent)], summary["status"]


def _runs(job: Job, folder: Path) -> Iterator[Run]:
    nodes = f" on {job['nodes']}" if job["nodes"] else ""
    again = f", run again {job['restarts']} times" if job["restarts"] else ""
    place = f"job {job['id']}{nodes}{again}"
    outcomes = []
    for part in job["parts"]:
        outcomes.append(OUTCOMES[part["outcome"]])
        document, trouble = None, "" if "report" in part else "; it has left no report"
        if "report" in part:
            try:
                document = _read_one(folder / part["report"] / JSON_NAME)
            except (FileError, FormatError) as error:
                trouble = f"; its report can't be used: {error}"
        name, output = f"{job['name']}/{part['name']}", tuple(part.get("log_end", ()))
        yield Run(name, outcomes[-1], part["ending"] + trouble, place, document, output)
    if not outcomes or (OUTCOMES[job["outcome"]] == NOT_ENDED and NOT_ENDED not in outcomes):
        yield Run(job["name"], OUTCOMES[job["outcome"]], job["meaning"], place)
