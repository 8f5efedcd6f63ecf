"""What the runtime did: every recorded task with its accesses, when it ran and where.

``Trainer.trace()`` returns it; the checks and the command line read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["Access", "AccessMode", "Finding", "FindingKind", "HandleInfo", "TaskRecord", "Trace"]


class AccessMode(IntEnum):
    """How a task declared that it uses a handle; REDUX adds to a sum, and consecutive ones commute."""

    READ = 1
    WRITE = 2
    READ_WRITE = 3
    REDUX = 4

    @property
    def reads(self) -> bool:
        """Whether what the handle held before has a part in the result."""
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
    """One task; times in nanoseconds of the monotonic clock, -1 for a sub-batch or layer that there is none of."""

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


class FindingKind(IntEnum):
    """What an instrument found; ``count`` are pages, with the last two elements."""

    UNDECLARED_READ = 1
    UNDECLARED_WRITE = 2
    READ_NEVER_HAPPENED = 3
    WRITE_NEVER_HAPPENED = 4
    NOT_WRITTEN = 5
    POISON_SPREAD = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """What an instrument found of one task and one handle.

    ``task`` is its number in the trace, None if the access wasn't a task's. ``offset`` is the first place in bytes from
    the buffer's begin, and ``count`` how many pages or elements there are; both 0 for what never happened.
    """

    task: int | None
    handle: HandleInfo
    kind: FindingKind
    offset: int
    count: int


@dataclass(frozen=True)
class Trace:
    """Recorded tasks in the order of submission.

    ``tasks`` is a structured array with the fields of ``TaskRecord`` as numbers (``operation`` indexes
    ``operations``; its accesses are ``accesses[first_access : first_access + num_accesses]``), for arithmetic over many
    tasks. Iterating gives ``TaskRecord`` objects.
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
        """Return the last task in the order of submission that writes each of a tensor's buffers, by buffer.

        Parameters
        ----------
        tensor
            A handle's name without what says which part of the tensor it is: ``activations/att[0]``. The buffers are
            ``activations/att[0]#0``, …, one per sub-batch.
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

    def kernel_seconds(self) -> float:
        """Sum of the kernels' times over all tasks, in seconds."""
        return float((self.tasks["end_ns"] - self.tasks["start_ns"]).sum()) * 1e-9

    def seconds_by_operation(self) -> dict[str, float]:
        """Sum of the kernels' times per operation, in seconds, longest first."""
        durations = self.tasks["end_ns"] - self.tasks["start_ns"]
        totals = np.bincount(self.tasks["operation"], weights=durations, minlength=len(self.operations)) * 1e-9
        order = np.argsort(-totals, kind="stable")
        return {self.operations[i]: float(totals[i]) for i in order if totals[i] > 0}
