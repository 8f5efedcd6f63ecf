"""What all formats show of a run: names, kinds and colours of tasks, their accesses, and their dependencies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from starpullm.graph.required_order import required_edges
from starpullm.graph.task_graph import DependencyKind
from starpullm.trace import AccessMode, TaskRecord
from starpullm.traces.traced_run import TracedRun

KIND_COLORS: Mapping[str, tuple[float, float, float]] = {
    "forward": (0.34, 0.71, 0.91),
    "backward": (0.90, 0.62, 0.00),
    "reduction": (0.94, 0.89, 0.26),
    "update": (0.00, 0.62, 0.45),
    "transfer": (0.80, 0.47, 0.65),
}
"""Red, green and blue, 0 to 1: colours that colour-blind people can tell apart (Okabe and Ito, 2008)."""

HEX_COLORS: Mapping[str, str] = {
    kind: "#" + "".join(f"{round(255 * part):02x}" for part in parts) for kind, parts in KIND_COLORS.items()
}
"""The same as a page and Graphviz write them."""


def kind_of(operation: str) -> str:
    """Return the part of a step that an operation belongs to, one of `KIND_COLORS`."""
    if operation == "transfer":
        return "transfer"
    if "_backward" in operation:
        return "backward"
    if operation.startswith("gradient"):
        return "reduction"
    return "update" if operation.startswith("adamw") else "forward"


def task_name(task: TaskRecord) -> str:
    """Return a name that is unique in a run, for people, such as ``matmul_forward 17``."""
    return f"{task.operation} {task.id}"


def task_fields(run: TracedRun, task: TaskRecord) -> dict[str, int | float | str]:
    """Return what every format tells of a task; a task without a layer or a sub-batch has no such entry."""
    fields: dict[str, int | float | str] = {"id": task.id, "step": task.step}
    if task.sub_batch >= 0:
        fields["sub_batch"] = task.sub_batch
    if task.layer >= 0:
        fields["layer"] = task.layer
    fields["rank"] = task.rank
    if task.worker >= 0:
        fields["worker"] = task.worker
        fields["submit_us"] = microseconds(run, task.submit_ns)
        fields["start_us"] = microseconds(run, task.start_ns)
        fields["duration_us"] = (task.end_ns - task.start_ns) / 1000
    for name, modes in (
        ("reads", (AccessMode.READ,)),
        ("writes", (AccessMode.WRITE,)),
        ("updates", (AccessMode.READ_WRITE,)),
        ("adds_to", (AccessMode.REDUX,)),
    ):
        handles = [access.handle.name for access in task.accesses if access.mode in modes]
        if handles:
            fields[name] = " ".join(handles)
    return fields


def microseconds(run: TracedRun, time_ns: int) -> float:
    """Return a time as microseconds after the run's first submission."""
    return (time_ns - run.origin_ns) / 1000


@dataclass(frozen=True, slots=True)
class Dependency:
    """Two tasks, by their places in the trace, of which the second waits for the first, and the data that it waits for.

    ``is_reuse``: no value goes from one to the other; the second only overwrites what the first has read or written.
    """

    before: int
    after: int
    handles: tuple[str, ...]
    is_reuse: bool


def dependencies(run: TracedRun) -> list[Dependency]:
    """Return the dependencies that the declared accesses require, without those that follow from others.

    They are the edges of the smallest graph with the same paths, in the order of the second task.
    """
    graph = required_edges(run.trace.tasks, run.trace.accesses).reduced()
    found = []
    for after, (start, end) in enumerate(pairwise(graph.first.tolist())):
        handles: defaultdict[int, list[str]] = defaultdict(list)
        carries_value: defaultdict[int, bool] = defaultdict(bool)
        for number in range(start, end):
            edge = graph.edge(number)
            handles[edge.before].append(run.trace.handles[edge.handle].name)
            carries_value[edge.before] |= edge.kind is DependencyKind.READ_AFTER_WRITE
        found += [
            Dependency(before, after, tuple(names), not carries_value[before]) for before, names in handles.items()
        ]
    return found


def dependencies_of_run_tasks(run: TracedRun) -> list[Dependency]:
    """Return the dependencies between tasks that a worker has run: those through a transfer join its two ends."""
    has_run = run.has_run.tolist()
    entering: defaultdict[int, list[Dependency]] = defaultdict(list)
    joined: dict[tuple[int, int], Dependency] = {}
    for edge in dependencies(run):
        origins = [edge]
        if not has_run[edge.before]:
            origins = [
                Dependency(first.before, edge.after, edge.handles, first.is_reuse or edge.is_reuse)
                for first in entering[edge.before]
            ]
        if not has_run[edge.after]:
            entering[edge.after] += origins
        else:
            for origin in origins:
                joined.setdefault((origin.before, origin.after), origin)
    return list(joined.values())
