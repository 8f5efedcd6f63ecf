"""The names that findings give to tasks, handles and paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from starpullm.checks.dependencies.graph import DependencyKind, Edge
from starpullm.trace import TaskRecord, Trace


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


@dataclass(frozen=True, slots=True)
class Dependency:
    """A task, a later task that has to wait for it, and the handle that is the reason."""

    before: TaskName
    after: TaskName
    handle: str
    kind: DependencyKind

    def __str__(self) -> str:
        return f"{self.before} → {self.after}: {self.kind.value} of {self.handle}"


def named_dependency(trace: Trace, edge: Edge) -> Dependency:
    """Return an edge with the names of its tasks and handle."""
    before, after = (TaskName.of(trace[task]) for task in (edge.before, edge.after))
    return Dependency(before, after, trace.handles[edge.handle].name, edge.kind)


def named_dependencies(trace: Trace, edges: Iterable[Edge]) -> tuple[Dependency, ...]:
    """Return edges with the names of their tasks and handles."""
    return tuple(named_dependency(trace, edge) for edge in edges)


def path_text(path: Sequence[Dependency]) -> str:
    """Return a path's tasks, with the handles between them."""
    return f"{path[0].before}" + "".join(f" → [{step.handle}] {step.after}" for step in path)
