"""What the runtime did: every recorded task with its accesses, when it ran and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import prototypes, structs


class AccessMode(IntEnum):
    """How a task declares that it uses a handle; REDUX contributes to a reduction, and such neighbours commute."""

    READ = 1
    WRITE = 2
    READ_WRITE = 3
    REDUX = 4

    @property
    def reads(self) -> bool:
        """Whether the result depends on the previous contents of the handle."""
        return self is not AccessMode.WRITE

    @property
    def writes(self) -> bool:
        """Whether the task writes the handle."""
        return self is not AccessMode.READ


@dataclass(frozen=True, slots=True)
class HandleInfo:
    """A data handle: its name (``group/tensor[layer]#sub-batch``) and its size in bytes."""

    id: int
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Access:
    """One entry of a task's access list."""

    handle: HandleInfo
    mode: AccessMode


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task; times are in nanoseconds of the monotonic clock; ``sub_batch`` and ``layer`` are -1 if it has none."""

    id: int
    step: int
    operation: str
    sub_batch: int
    layer: int
    rank: int
    worker: int
    submit_ns: int
    start_ns: int
    end_ns: int
    accesses: tuple[Access, ...]


@dataclass(frozen=True)
class Trace:
    """Recorded tasks in the order of submission.

    ``tasks`` is a structured array with the fields of ``TaskRecord`` as numbers, for arithmetic over many tasks:
    ``operation`` is an index into ``operations``, and a task's accesses are
    ``accesses[first_access : first_access + num_accesses]``. Iteration yields ``TaskRecord`` objects.
    """

    tasks: NDArray[np.void]
    accesses: NDArray[np.void]
    operations: tuple[str, ...]
    handles: tuple[HandleInfo, ...]

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> TaskRecord:
        task = self.tasks[index]
        first = int(task["first_access"])
        accesses = tuple(
            Access(self.handles[int(access["handle"])], AccessMode(int(access["mode"])))
            for access in self.accesses[first : first + int(task["num_accesses"])]
        )
        return TaskRecord(
            id=int(task["id"]),
            step=int(task["step"]),
            operation=self.operations[int(task["operation"])],
            sub_batch=int(task["sub_batch"]),
            layer=int(task["layer"]),
            rank=int(task["rank"]),
            worker=int(task["worker"]),
            submit_ns=int(task["submit_ns"]),
            start_ns=int(task["start_ns"]),
            end_ns=int(task["end_ns"]),
            accesses=accesses,
        )

    def __iter__(self) -> Iterator[TaskRecord]:
        return (self[index] for index in range(len(self)))

    def last_writers(self, tensor: str) -> dict[str, TaskRecord]:
        """Return the last submitted task that writes each of a tensor's buffers, by the buffer's name.

        Parameters
        ----------
        tensor
            A handle's name without its suffix, for example ``activations/att[0]``, whose buffers are
            ``activations/att[0]#0`` and so on, one for each sub-batch.
        """
        parts = (f"{tensor}#", f"{tensor}/", f"{tensor}@")
        names = {
            handle.id: handle.name for handle in self.handles if handle.name == tensor or handle.name.startswith(parts)
        }
        mine = np.isin(self.accesses["handle"], list(names)) & (self.accesses["mode"] != AccessMode.READ)
        ends = self.tasks["first_access"] + self.tasks["num_accesses"]
        last: dict[str, int] = {}
        for access in np.flatnonzero(mine):
            last[names[int(self.accesses["handle"][access])]] = int(np.searchsorted(ends, access, side="right"))
        return {name: self[task] for name, task in last.items()}

    def seconds_by_operation(self) -> dict[str, float]:
        """Return the time of each operation's kernels in seconds, the longest first."""
        # No worker has run a transfer.
        durations = np.where(self.tasks["worker"] >= 0, self.tasks["end_ns"] - self.tasks["start_ns"], 0)
        totals = np.bincount(self.tasks["operation"], durations, minlength=len(self.operations)) * 1e-9
        order = np.argsort(-totals, kind="stable")
        return {self.operations[i]: float(totals[i]) for i in order if totals[i] > 0}


def read_trace(session: structs.Handle) -> Trace:
    """Wait for all submitted tasks of a session and return what was recorded since the trace was cleared."""
    num_tasks, num_accesses = prototypes.trace_size(session)
    tasks, accesses = np.empty(num_tasks, structs.TRACE_TASK), np.empty(num_accesses, structs.TRACE_ACCESS)
    prototypes.call("session_trace_read", session, tasks, len(tasks), accesses, len(accesses))
    return Trace(tasks, accesses, tuple(prototypes.names("operation_name")), read_handles(session))


def read_handles(session: structs.Handle) -> tuple[HandleInfo, ...]:
    """Return all handles of a session; a handle's id is its index."""
    handles = []
    info = structs.new("handle_info")
    for index in range(prototypes.call("session_handle_count", session)):
        prototypes.call("session_handle_info", session, index, info)
        handles.append(HandleInfo(index, prototypes.text(info.name), int(info.bytes)))
    return tuple(handles)
