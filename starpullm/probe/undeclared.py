"""Accesses to handles that tasks didn't declare, as the run with protected pages saw them, and where in the source."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from starpullm.probe.findings import Fault, ProgramFinding, task_finding
from starpullm.probe.places import Frame, frames_of, read_lines
from starpullm.probe.program_tasks import TaskFlow

PROTECTION_SECONDS = 5e-6
"""Of a call of mprotect for one row of a tile: 2 µs in the kernel on the machine of docs/probe.md, and a wait for other
threads of the process, which take part in it."""


class _LoggedAccess(NamedTuple):
    """What one line of the log says; task and handle are numbers of the log."""

    task: int
    handle: int
    element: int
    is_write: bool
    is_declared: bool
    frames: tuple[Frame, ...]


def _access(columns: list[str]) -> _LoggedAccess:
    task, handle, element, kind, declared, *rest = columns
    return _LoggedAccess(int(task), int(handle), int(element), kind == "w", declared == "1", frames_of(rest))


def undeclared_accesses(schedule: str, flow: TaskFlow) -> Iterator[ProgramFinding]:
    """Yield the first access of each task to each handle that it doesn't declare, and the first write as well."""
    handles = {of_log: handle for handle, of_log in enumerate(flow.handle_of_log.tolist())}
    seen: set[tuple[int, int, bool]] = set()
    for access in read_lines(flow.log.folder / "undeclared", "an access", _access):
        key = access.task, access.handle, access.is_write
        task, handle = flow.position(access.task), handles.get(access.handle)
        if key in seen or task is None or handle is None:
            continue
        seen.add(key)
        yield _finding(schedule, flow, task, handle, access)


def protections(flow: TaskFlow) -> int:
    """Return how often a run that is watched opens and closes pages of what tasks declare: rows apart by themselves."""
    handles = flow.log.handles
    sizes, gap = handles["sizes"], handles["strides"][:, 1] - handles["sizes"][:, 0] * handles["element_bytes"]
    rows = np.where(gap.astype(np.int64) < mmap.PAGESIZE, 1, sizes[:, 1]) * sizes[:, 2] * sizes[:, 3]
    return 2 * int(rows[flow.handle_of_log[flow.handle]].sum())


def _finding(schedule: str, flow: TaskFlow, task: int, handle: int, access: _LoggedAccess) -> ProgramFinding:
    kind = Fault.UNDECLARED_WRITE if access.is_write else Fault.UNDECLARED_READ
    kind = Fault.READ_WRITTEN if access.is_declared else kind
    declares = "it declares to read only" if access.is_declared else "it doesn't declare"
    place = _place(access.frames) or "at an instruction whose place isn't known"
    sentence = f"{'writes' if access.is_write else 'reads'} data that {declares}"
    evidence = {"handle": flow.handle_text(handle), flow.element_name(handle, access.element): place}
    finding = task_finding(kind, schedule, flow, task, sentence, **evidence)
    return replace(finding, handle=handle, element=access.element)


def _place(frames: Sequence[Frame]) -> str:
    """Return the function and the line of the innermost frame of the program's own; nothing if there is none.

    Where no line is known, it is the outermost one: the task's function, and not one of a library.
    """
    places = [frame.place() for frame in frames if frame.is_own]
    known = [text for text, is_line in places if is_line]
    return known[0] if known else places[-1][0] if places else ""


@dataclass(frozen=True, slots=True)
class Watched:
    """How much of a run was watched for undeclared accesses."""

    bytes: int = 0
    of_bytes: int = 0
    tasks: int = 0
    of_tasks: int = 0
    handles_left_out: int = 0

    @classmethod
    def of(cls, flows: Sequence[TaskFlow]) -> Self:
        """Return what the ranks of a run counted."""
        members = ("watched_bytes", "handle_bytes", "watched_tasks", "unwatched_handles")
        watched, total, tasks, left_out = (sum(int(flow.log.header[name]) for flow in flows) for name in members)
        num_tasks = sum(int(((flow.start_ns >= 0) & flow.has_function).sum()) for flow in flows)
        return cls(watched, total, min(tasks, num_tasks), num_tasks, left_out)

    def __str__(self) -> str:
        left_out = f"; handles that aren't plain memory: {self.handles_left_out}" if self.handles_left_out else ""
        if self.bytes == 0 or self.tasks == 0:
            return (
                "not watched: no byte could be protected against undeclared accesses (no task has data, no page has "
                f"only handles' data, or StarPU uses a disk){left_out}"
            )
        share = 100 * self.bytes / self.of_bytes
        return (
            f"watched for undeclared accesses: {share:.3g} % of the bytes of handles, in {self.tasks} of "
            f"{self.of_tasks} tasks{left_out}"
        )
