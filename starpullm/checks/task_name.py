"""The name that findings give to a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from starpullm.trace import TaskRecord


@dataclass(frozen=True, slots=True)
class TaskName:
    """What identifies a task for people; ``sub_batch``, ``layer`` or ``worker`` is -1 if it has none."""

    id: int
    operation: str
    step: int
    sub_batch: int
    layer: int
    rank: int
    worker: int

    @classmethod
    def of(cls, task: TaskRecord) -> Self:
        """Return the name of a recorded task."""
        return cls(task.id, task.operation, task.step, task.sub_batch, task.layer, task.rank, task.worker)

    def __str__(self) -> str:
        parts = [f"step {self.step}"]
        if self.sub_batch >= 0:
            parts.append(f"sub-batch {self.sub_batch}")
        if self.layer >= 0:
            parts.append(f"layer {self.layer}")
        return f"{self.operation} ({', '.join(parts)})"
