"""Logs of the probe, written by hand for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.program_tasks import TaskFlow, flow_of

STREAMS = ("names", "handles", "tasks", "accesses", "events", "hashes", "contents")
R, W, RW, REDUX, COMMUTE = 1, 2, 3, 8, 16


@dataclass(frozen=True)
class Task:
    """Handles with modes, hashes of contents before and after by handle, and times."""

    codelet: str
    modes: Mapping[int, int]
    times: tuple[int, int, int]  # submission, start, end
    before: Mapping[int, int] = field(default_factory=dict)
    after: Mapping[int, int] = field(default_factory=dict)
    flags: int = 0
    arguments: int = 0
    stack: int = 0
    submitter: int = 0
    thread: int = 1
    returned: Mapping[int, int] = field(default_factory=dict)
    implementation: int = 0


def write_records(folder: Path, records: Mapping[str, NDArray[np.void]]) -> Path:
    """Write the files of a log."""
    header = np.zeros(1, probe_log.HEADER)
    header["magic"], header["format"] = probe_log.MAGIC, probe_log.FORMAT
    header["rank"] = -1
    header["counts"] = [len(records[name]) for name in STREAMS]
    folder.mkdir(parents=True)
    header.tofile(folder / "header")
    for name in STREAMS:
        records[name].tofile(folder / name)
    (folder / "stack").write_text("")
    (folder / "undeclared").write_text("")
    (folder / "stacks").write_text("")
    return folder


def write_log(folder: Path, tasks: Sequence[Task], contents: Mapping[int, float]) -> Path:
    """Write a log of these tasks, in the order of submission; each handle is a double; `contents` are by hash."""
    names = ["", *sorted({task.codelet for task in tasks})]
    num_handles = 1 + max((handle for task in tasks for handle in task.modes), default=-1)
    accesses = [(handle, mode, 0, 0) for task in tasks for handle, mode in task.modes.items()]
    first, rows, events, hashes = 0, [], [], []
    for number, task in enumerate(tasks):
        codelet = names.index(task.codelet)
        rows.append(
            (
                task.times[0],
                first,
                len(task.modes),
                codelet,
                codelet,
                task.flags,
                task.arguments,
                task.stack,
                1,
                task.submitter,
                task.thread,
                [0] * 2,
            )
        )
        first += len(task.modes)
        ran_by = (task.implementation, 0)
        events += [
            (number, time, kind, 0, by, 0)
            for kind, time, by in zip((2, 3), task.times[1:], ran_by, strict=True)
            if time
        ]
        hashes_of = {probe_log.BEFORE: task.before, probe_log.RETURNED: task.returned, probe_log.AFTER: task.after}
        for time, values in hashes_of.items():
            position = list(task.modes)
            hashes += [(number, position.index(handle), time, value, 0) for handle, value in values.items()]
    content = {
        "names": [(name.encode(),) for name in names],
        "tasks": rows,
        "accesses": accesses,
        "events": sorted(events, key=lambda event: event[1]),
        "hashes": hashes,
        "contents": [(value, 8 * index, 8, 0) for index, value in enumerate(contents)],
    }
    records = {name: np.array(content[name], probe_log.RECORDS[name]) for name in content}
    records["handles"] = np.zeros(num_handles, probe_log.RECORDS["handles"])
    records["handles"]["element_bytes"], records["handles"]["bytes"] = 8, 8
    records["handles"]["sizes"] = 1
    write_records(folder, records)
    (folder / "bytes").write_bytes(np.array(list(contents.values()), np.float64).tobytes())
    return folder


def flow(folder: Path, *tasks: Task, contents: Mapping[int, float] | None = None) -> TaskFlow:
    """Return the task flow of a log of these tasks."""
    return flow_of(probe_log.read_probe_log(write_log(folder, tasks, contents or {})))
