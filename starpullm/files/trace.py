"""Traces: the tasks of a run, when and where they ran and what they accessed, in a zip archive of JSON and arrays.

``docs/formats.md`` describes the format. The arrays are this format's own, not those of the library's structs, so that
a file stays readable when the structs change.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
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
    """The content of a trace file.

    ``settings`` are the run's, as JSON values. ``ranks`` has an object for each rank. ``operations`` and ``handles``
    are what the arrays' numbers name; a handle has a name and a size in bytes. ``tasks`` has the type `TASK`,
    ``accesses`` the type `ACCESS`.
    """

    program: str
    settings: Mapping[str, Any]
    clock: Mapping[str, int]
    ranks: Sequence[Mapping[str, Any]]
    operations: Sequence[str]
    handles: Sequence[tuple[str, int]]
    tasks: NDArray[np.void]
    accesses: NDArray[np.void]


def write_trace_file(path: StrPath, trace: TraceFile) -> None:
    """Write a trace; the file appears under its name only when it is complete."""
    about = {
        "format": FORMAT,
        "version": VERSION,
        "program": trace.program,
        "settings": dict(trace.settings),
        "clock": dict(trace.clock),
        "ranks": [dict(rank) for rank in trace.ranks],
        "operations": list(trace.operations),
        "handles": [{"name": name, "bytes": size} for name, size in trace.handles],
    }
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(ABOUT, json.dumps(about, indent=1))
        for name, array in ((TASKS, trace.tasks), (ACCESSES, trace.accesses)):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(name, buffer.getvalue())


def read_trace_file(path: StrPath) -> TraceFile:
    """Read a trace, and check that all of its numbers name something."""
    with reading(path) as (file, where):
        data = io.BytesIO(file.read())  # in memory, where only damage can make reading fail
        try:
            with zipfile.ZipFile(data) as archive:
                content = {name: archive.read(name) for name in (ABOUT, TASKS, ACCESSES)}
        except DAMAGED_ARCHIVE as error:
            raise _refusal(where, f"a {FORMAT}, a zip archive with {ABOUT}, {TASKS} and {ACCESSES}", error) from error
        about = _read_about(where, content[ABOUT])
        trace = TraceFile(
            program=about.child("program").text(),
            settings=about.child("settings").mapping(),
            clock=about.child("clock").mapping(),
            ranks=[_checked_rank(rank) for rank in about.child("ranks").items()],
            operations=[name.text() for name in about.child("operations").items()],
            handles=[
                (handle.child("name").text(), handle.child("bytes").integer(maximum=INT64_MAX))
                for handle in about.child("handles").items()
            ],
            tasks=_read_array(where, TASKS, content[TASKS], TASK),
            accesses=_read_array(where, ACCESSES, content[ACCESSES], ACCESS),
        )
        _check_numbers(where, trace)
        return trace


def _refusal(where: Path, expected: str, found: object) -> FormatError:
    return FormatError(f"{where}: expected {expected}, found {found}")


def _read_about(where: Path, text: bytes) -> JsonNode:
    about = JsonNode(f"{where}, {ABOUT}", "", parse_json(text, f"{where}, {ABOUT}"))
    for member, expected in (("format", FORMAT), ("version", VERSION)):
        if (node := about.child(member)).value != expected:
            raise node.refusal(json.dumps(expected))
    return about


def _checked_rank(rank: JsonNode) -> dict[str, Any]:
    for member in ("host", "partition"):
        rank.child(member).text()
    rank.child("clock_uncertainty_ns").integer(maximum=INT64_MAX)
    return rank.mapping()


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
    names = [*trace.operations, *(name for name, _ in trace.handles), *(rank["host"] for rank in trace.ranks)]
    for name in (*names, *(rank["partition"] for rank in trace.ranks)):
        if not name or not name.isprintable():
            raise _refusal(where, f"names of printable characters in {ABOUT}", repr(name))
    _check_range(where, "task", "operation", tasks["operation"], 0, len(trace.operations) - 1)
    _check_range(where, "task", "rank", tasks["rank"], 0, len(trace.ranks) - 1)
    _check_range(where, "task", "worker", tasks["worker"], -1, np.iinfo(np.int32).max)
    _check_range(where, "task", "number of accesses", tasks["num_accesses"], 0, len(accesses))
    _check_range(where, "access", "handle", accesses["handle"], 0, len(trace.handles) - 1)
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
