"""What the runtime did: every recorded task with its accesses, when it ran and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import prototypes, structs
from starpullm.errors import RuntimeFailureError
from starpullm.processes import Comm


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
    """One task; times are in nanoseconds of the monotonic clock; ``sub_batch`` and ``layer`` are -1 if it has none.

    Its text is what identifies it for people.
    """

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

    def __str__(self) -> str:
        sub_batch = f", sub-batch {self.sub_batch}" if self.sub_batch >= 0 else ""
        layer = f", layer {self.layer}" if self.layer >= 0 else ""
        return f"{self.operation} (step {self.step}{sub_batch}{layer})"


_NUMBERS = ("id", "step", "sub_batch", "layer", "rank", "worker", "submit_ns", "start_ns", "end_ns")


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
        numbers = {name: int(task[name]) for name in _NUMBERS}
        return TaskRecord(operation=self.operations[int(task["operation"])], accesses=accesses, **numbers)

    def __iter__(self) -> Iterator[TaskRecord]:
        return (self[index] for index in range(len(self)))

    def last_writers(self, tensor: str) -> dict[str, TaskRecord]:
        """Return the last submitted task that writes each of a tensor's buffers, by the buffer's name.

        The tensor is named as ``activations/att[0]``, whose buffers are ``activations/att[0]#0`` and so on, one for
        each sub-batch.
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


def read_trace(session: structs.Handle, comm: Comm | None = None) -> Trace:
    """Wait for all submitted tasks of a session and return what was recorded since the trace was cleared.

    Over ranks every rank calls it, and gets the tasks of all ranks; of other ranks' tasks it doesn't get the times.
    `RuntimeFailureError` is raised if the ranks have submitted different tasks.
    """
    own = read_local_trace(session)
    return own if comm is None else with_other_ranks(own, comm)


def read_local_trace(session: structs.Handle) -> Trace:
    """Return the same of this rank's tasks alone."""
    return make_trace(*prototypes.trace("session_trace", session))


def make_trace(tasks: NDArray[np.void], accesses: NDArray[np.void], handles: Iterable[tuple[str, int, int]]) -> Trace:
    """Return the trace that the library has given."""
    named = tuple(HandleInfo(index, name, size) for index, (name, size, _) in enumerate(handles))
    return Trace(tasks, accesses, tuple(prototypes.names("operation_name")), named)


def with_other_ranks(own: Trace, comm: Comm) -> Trace:
    """Return the tasks of all ranks in the order of submission; arguments and errors as ``read_trace``.

    A rank has recorded the tasks that it runs, and the messages that it sends or receives, under numbers that count
    all ranks' tasks.
    """
    parts = comm.allgather((own.tasks, own.accesses))
    parts = [(own.tasks, own.accesses), *(part for rank, part in enumerate(parts) if rank != comm.Get_rank())]
    tasks = np.concatenate([part for part, _ in parts])
    accesses = np.concatenate([part for _, part in parts])
    starts = np.repeat(np.cumsum([0, *(len(part) for _, part in parts[:-1])]), [len(part) for part, _ in parts])
    tasks["first_access"] += starts
    for name, nothing in (("worker", -1), ("submit_ns", 0), ("start_ns", 0), ("end_ns", 0)):
        tasks[name][len(own) :] = nothing
    ids, first = np.unique(tasks["id"], return_index=True)  # of two records of a message, this rank's
    missing = np.flatnonzero(ids != np.arange(len(ids)))
    if len(missing):
        raise RuntimeFailureError(f"trace: no rank has recorded task {missing[0]}, expected all below {ids[-1]}")
    for name in ("step", "operation", "sub_batch", "layer", "rank", "num_accesses"):
        other = np.flatnonzero(tasks[name] != tasks[name][first][tasks["id"]])
        if len(other):
            raise RuntimeFailureError(f"trace: the ranks have recorded different tasks as task {tasks['id'][other[0]]}")
    tasks = tasks[first]
    counts = tasks["num_accesses"].astype(np.int64)
    ends = np.cumsum(counts)
    accesses = accesses[np.repeat(tasks["first_access"] - (ends - counts), counts) + np.arange(counts.sum())]
    tasks["first_access"] = ends - counts
    known = np.flatnonzero(tasks["submit_ns"])
    if len(known):  # others were submitted after the one of this rank before them
        tasks["submit_ns"][: known[0]] = tasks["submit_ns"][known[0]]
        tasks["submit_ns"] = np.maximum.accumulate(tasks["submit_ns"])
    return replace(own, tasks=tasks, accesses=accesses)
