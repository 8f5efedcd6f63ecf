"""The types of a report's JSON file, which docs/formats.md describes, and a reader that checks a file against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from starpullm.files.json_reader import read_json


class Result(TypedDict):
    """A result of ``starpullm.checks``: the fields of ``starpullm.checks.result.Result``, and its text."""

    check: str
    outcome: Literal["passed", "failed", "no result", "not comparable", "inconclusive"]
    compared: int
    unit: str
    """What ``compared`` counts, in the plural."""
    sentence: str
    """What the outcome rests on."""
    claim: str
    """What holds if it passed; empty for a user's own check."""
    lines: list[str]
    """The whole text."""
    facts: dict[str, Any]
    """Numbers and names; each check has its own."""


class Test(TypedDict):
    """A test, or a comparison of a command."""

    test: str
    family: str
    configuration: str
    outcome: Literal["passed", "failed", "skipped", "unfinished"]
    ending: str
    """In a few words, how it has ended."""
    seconds: float
    message: str
    """Why the test failed or was skipped."""
    results: list[Result]
    reruns: NotRequired[int]
    """The attempts before the one that is described."""
    repeated: NotRequired[list[str]]
    """Why attempts failed that were repeated."""


class NotChecked(TypedDict):
    """What was not checked, why, and the tests of it."""

    what: str
    reason: str
    tests: list[str]


class Tasks(TypedDict):
    """The tasks of a recording: columns of equal length, in the order of submission; ns since the first start."""

    operation: list[int]
    step: list[int]
    sub_batch: list[int]
    layer: list[int]
    rank: list[int]
    worker: list[int]
    start: list[int]
    end: list[int]


class Recording(TypedDict):
    """A recorded run. ``critical_path`` has the numbers of the tasks of the longest chain, by measured durations."""

    name: str
    configuration: str
    operations: list[str]
    tasks: Tasks
    critical_path: list[int]


class ReportFile(TypedDict):
    """A report of a run. Times are seconds since 1970-01-01 UTC."""

    version: Literal[7]
    command: str
    """For example pytest or starpullm parity."""
    arguments: list[str]
    state: Literal["running", "ended"]
    """running: the run had not ended when the file was written; it goes on, or it was killed."""
    exit_status: int | None
    failed: bool
    """Whether the exit status says that something failed."""
    stopped: str | None
    """Why the run ended before its end, if it did."""
    time: float
    written: float
    host: str
    environment: dict[str, Any] | None
    """The output of ``starpullm doctor --json``."""
    ranks: int
    seed: int | None
    selection: dict[str, list[str]]
    """What was chosen, by the name of the option."""
    running: list[str]
    """Tests that had begun and not ended."""
    tests: list[Test]
    not_checked: list[NotChecked]
    notes: list[str]
    isolation: dict[str, float] | None
    """Number and cost of the processes of the checks."""
    recordings: list[Recording]


def read_report(path: Path) -> dict[str, Any]:
    """The content of a file, whose types are right and whose recordings are whole."""
    document: dict[str, Any] = read_json(path)
    msgspec.convert(document, ReportFile)
    for recording in document["recordings"]:
        tasks = recording["tasks"]
        assert len({len(values) for values in tasks.values()}) == 1
        assert set(tasks["operation"]) <= set(range(len(recording["operations"])))
        assert set(recording["critical_path"]) <= set(range(len(tasks["operation"])))
    return document
