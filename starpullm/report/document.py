"""The JSON file of a report: the types of what it contains, and how it is made, written, read and checked."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, TypeVar

from starpullm.errors import FormatError
from starpullm.files.atomic import atomic_write
from starpullm.files.json_reader import read_json

VERSION = 5

JSON_NAME = "report.json"
"""Of the file in a report's folder."""

Document: TypeAlias = dict[str, Any]
"""The content of a report's JSON file, with the keys and values of `ReportFile`."""

_Entry = TypeVar("_Entry")
_Key = TypeVar("_Key", bound=Hashable)


class Result(TypedDict):
    """A result of ``starpullm.checks``: the fields of ``starpullm.checks.result.Result``, and its text."""

    check: str
    outcome: Literal["passed", "failed", "not comparable", "inconclusive"]
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
    outcome: Literal["passed", "failed", "skipped"]
    seconds: float
    message: str
    """Why the test failed or was skipped."""
    results: list[Result]
    failure: str
    """Why a check had no result; empty if all had one."""
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


class Measured(TypedDict):
    """An entry of ``starpullm bench --json``, or the measurement of a pytest run; what isn't known is left out."""

    configuration: dict[str, Any]
    """A ``starpullm.speed.workload.Workload``."""
    failure: NotRequired[str]
    tokens_per_ms: NotRequired[float]
    matmul_flops: NotRequired[int]
    matmul_gflops: NotRequired[float]
    matmul_limit_gflops: NotRequired[float]
    matmul_limit_range: NotRequired[tuple[float, float]]
    fraction_of_limit: NotRequired[float]
    processor: NotRequired[str]
    contenders: NotRequired[list[dict[str, Any]]]


class ReportFile(TypedDict):
    """A report of a run. Times are seconds since 1970-01-01 UTC."""

    version: Literal[5]
    command: str
    """For example pytest, starpullm parity or starpullm bench."""
    arguments: list[str]
    state: Literal["running", "ended"]
    """running: the run had not ended when the file was written; it goes on, or it was killed."""
    exit_status: int | None
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
    throughput: list[Measured]


def new_document(command: str, arguments: Sequence[str], *, ranks: int = 1, seed: int | None = None) -> Document:
    """Return the document of a run that has just begun; ``command`` is for example ``starpullm parity``."""
    now = time.time()
    lists = ("running", "tests", "not_checked", "notes", "recordings", "throughput")
    known: dict[str, Any] = {
        "version": VERSION,
        "command": command,
        "arguments": list(arguments),
        "state": "running",
        "time": now,
        "written": now,
        "host": socket.gethostname(),
        "ranks": ranks,
        "seed": seed,
        "selection": {},
        **{name: [] for name in lists},
    }
    return {name: known.get(name) for name in ReportFile.__annotations__}


def grouped(entries: Iterable[_Entry], key: Callable[[_Entry], _Key]) -> dict[_Key, list[_Entry]]:
    """Return the entries by key, in the order in which they come."""
    groups: dict[_Key, list[_Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return groups


def write_document(document: Document, path: Path) -> None:
    """Write the file, which appears under its name only when it is complete."""
    document["written"] = time.time()
    # Without indentation Python's encoder is many times as fast.
    indent = None if document["state"] == "running" else 1
    try:
        text = json.dumps(document, indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: can't be written: {error}") from error
    with atomic_write(path) as file:
        file.write(text.encode() + b"\n")


def read_document(path: Path) -> Document:
    """Read and check the file."""
    found = read_json(path)
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION:
        said = "a file without a version" if version is None else f"version {version}"
        raise FormatError(f"{path}: found {said}, expected a report of version {VERSION}")
    document: Document = found
    check_document(document, str(path))
    return document


def check_document(document: Document, name: str) -> None:
    """Raise a ``FormatError`` unless a document has the types of `ReportFile` and its recordings are whole."""
    check_type(document, ReportFile, name)
    for recording in document["recordings"]:
        tasks = recording["tasks"]
        lengths = {column: len(values) for column, values in tasks.items()}
        if len(set(lengths.values())) > 1:
            raise FormatError(f"{name}: tasks of a recording: found columns of lengths {lengths}, expected equal ones")
        for what, numbers, count in (
            ("operation", tasks["operation"], len(recording["operations"])),
            ("critical_path", recording["critical_path"], len(tasks["operation"])),
        ):
            wrong = next((number for number in numbers if not 0 <= number < count), None)
            if wrong is not None:
                raise FormatError(f"{name}: {what} of a recording: found {wrong}, expected numbers below {count}")


def check_type(value: object, expected: type, name: str) -> None:
    """Raise a ``FormatError`` unless the JSON value of the file ``name`` has a type of this module."""
    import msgspec

    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        sentence = re.sub(" - at `([^`]*)`$", lambda place: f", in {place[1].removeprefix('$.')}", str(error))
        raise FormatError(f"{name}: {sentence}") from error
