"""Traces: the tasks of a run, when and where they ran and what they accessed, in a zip archive of JSON and arrays.

``docs/formats.md`` describes the format. The arrays are this format's own, not those of the library's structs, so that
a file stays readable when the structs change.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FormatError
from starpullm.files.arrays import DAMAGED_ARCHIVE
from starpullm.files.atomic import atomic_write
from starpullm.files.header import StrPath, reading
from starpullm.files.json_reader import JsonNode, parse_json
from starpullm.files.kinds import TRACE
from starpullm.files.model import INT64_MAX

FORMAT: Final = "starpullm trace"
VERSION: Final = 1
ABOUT: Final = "about.json"
TASKS: Final = "tasks.npy"
ACCESSES: Final = "accesses.npy"

TASK: Final = np.dtype(
    [
        ("step", "<i8"),
        ("submit_ns", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("first_access", "<i8"),
        ("num_accesses", "<i4"),
        ("operation", "<i4"),
        ("sub_batch", "<i4"),
        ("layer", "<i4"),
        ("rank", "<i4"),
        ("worker", "<i4"),
    ]
)
ACCESS: Final = np.dtype([("handle", "<i4"), ("mode", "<i4")])

_MODES = (1, 4)  # the first and the last access mode


@dataclass(frozen=True)
class TraceFile:
    """The content of a trace file: ``tasks`` has the type `TASK`, ``accesses`` the type `ACCESS`.

    ``about`` has JSON values by name: program, settings, clock, ranks, and operations and handles, which are what the
    arrays' numbers name.
    """

    about: Mapping[str, Any]
    tasks: NDArray[np.void]
    accesses: NDArray[np.void]


def write_trace_file(path: StrPath, trace: TraceFile) -> None:
    """Write a trace; the file appears under its name only when it is complete."""
    about = {"format": FORMAT, "version": VERSION, **trace.about}
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ABOUT, json.dumps(about, indent=1))
        for name, array in ((TASKS, trace.tasks), (ACCESSES, trace.accesses)):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(name, buffer.getvalue())


def read_trace_file(path: StrPath) -> TraceFile:
    """Read a trace, and check that all of its numbers name something."""
    with reading(path, TRACE) as (file, where):
        data = io.BytesIO(file.read())  # in memory, where only damage can make reading fail
        try:
            with zipfile.ZipFile(data) as archive:
                content = {name: archive.read(name) for name in (ABOUT, TASKS, ACCESSES)}
        except DAMAGED_ARCHIVE as error:
            raise _refusal(where, f"a {FORMAT}, a zip archive with {ABOUT}, {TASKS} and {ACCESSES}", error) from error
        about = _read_about(where, content[ABOUT])
        tasks, accesses = (
            _read_array(where, name, content[name], dtype) for name, dtype in ((TASKS, TASK), (ACCESSES, ACCESS))
        )
        _check_numbers(where, trace := TraceFile(about, tasks, accesses))
        return trace


def _refusal(where: Path, expected: str, found: object) -> FormatError:
    return FormatError(f"{where}: expected {expected}, found {found}")


def _read_about(where: Path, text: bytes) -> dict[str, Any]:
    about = JsonNode(f"{where}, {ABOUT}", "", parse_json(text, f"{where}, {ABOUT}"))
    for member, expected in (("format", FORMAT), ("version", VERSION)):
        if (node := about.child(member)).value != expected:
            raise node.refusal(json.dumps(expected))
    about.child("program").text()
    for member in ("settings", "clock"):
        about.child(member).mapping()
    for rank in about.child("ranks").items():
        for member in ("host", "partition"):
            rank.child(member).text()
        rank.child("clock_uncertainty_ns").integer(maximum=INT64_MAX)
    for operation in about.child("operations").items():
        operation.text()
    for handle in about.child("handles").items():
        handle.child("name").text()
        handle.child("bytes").integer(maximum=INT64_MAX)
    return about.mapping()


def _read_array(where: Path, name: str, content: bytes, expected: np.dtype[np.void]) -> NDArray[np.void]:
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except DAMAGED_ARCHIVE as error:
        raise _refusal(where, f"a NumPy array in {name}", error) from error
    if version != (1, 0) or dtype != expected or len(shape) != 1:
        raise _refusal(where, f"a list of {expected.descr} in {name}", f"shape {shape} of {dtype}")
    data = content[stream.tell() :]
    if len(data) != shape[0] * expected.itemsize:
        raise _refusal(where, f"{shape[0] * expected.itemsize} bytes of {name}", f"{len(data)}")
    return np.frombuffer(data, expected)


def _check_numbers(where: Path, trace: TraceFile) -> None:
    """Check that numbers of operations, ranks, handles and accesses exist, and that no task ends before it starts."""
    tasks, accesses = trace.tasks, trace.accesses
    operations, handles, ranks = (trace.about[name] for name in ("operations", "handles", "ranks"))
    places = (rank[name] for name in ("host", "partition") for rank in ranks)
    for name in (*operations, *(handle["name"] for handle in handles), *places):
        if not name or not name.isprintable():
            raise _refusal(where, f"names of printable characters in {ABOUT}", repr(name))
    _check_range(where, "task", "operation", tasks["operation"], 0, len(operations) - 1)
    _check_range(where, "task", "rank", tasks["rank"], 0, len(ranks) - 1)
    _check_range(where, "task", "worker", tasks["worker"], -1, np.iinfo(np.int32).max)
    _check_range(where, "task", "number of accesses", tasks["num_accesses"], 0, len(accesses))
    _check_range(where, "access", "handle", accesses["handle"], 0, len(handles) - 1)
    _check_range(where, "access", "mode", accesses["mode"], *_MODES)
    expected = np.cumsum(tasks["num_accesses"], dtype=np.int64) - tasks["num_accesses"]
    wrong = np.flatnonzero(tasks["first_access"] != expected)
    if len(wrong):
        task = int(wrong[0])
        raise _refusal(where, f"first access {expected[task]} of task {task}", tasks["first_access"][task])
    if int(tasks["num_accesses"].sum()) != len(accesses):
        raise _refusal(where, f"{tasks['num_accesses'].sum()} accesses", len(accesses))
    backwards = np.flatnonzero((tasks["worker"] >= 0) & (tasks["end_ns"] < tasks["start_ns"]))
    if len(backwards):
        task = int(backwards[0])
        start, end = tasks["start_ns"][task], tasks["end_ns"][task]
        raise _refusal(where, f"an end of task {task} after its start at {start} ns", f"{end} ns")


def _check_range(where: Path, what: str, name: str, values: NDArray[Any], low: int, high: int) -> None:
    wrong = np.flatnonzero((values < low) | (values > high))
    if len(wrong):
        number = int(wrong[0])
        raise _refusal(where, f"{what} {number} with {name} {low} to {high}", values[number])
