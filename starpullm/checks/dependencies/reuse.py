"""What the reuse of handles adds to the required order, and to the critical path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.dependencies.graph import TaskGraph
from starpullm.checks.dependencies.required_order import TaskFlow, graph_of, task_flow
from starpullm.checks.dependencies.wording import Dependency, named_dependencies, named_dependency, path_text
from starpullm.checks.result import MAX_LISTED, CheckResult, Outcome, passed_if
from starpullm.trace import AccessMode, Trace


@dataclass(frozen=True, slots=True)
class ReusedHandle:
    """The edges that the reuse of one handle adds; how many of them no path without reuse implies, and one of these."""

    handle: str
    num_added: int
    num_not_implied: int
    example: Dependency


@dataclass(frozen=True, kw_only=True)
class ReuseResult(CheckResult):
    """What the reuse of handles adds to the order and to the critical path.

    ``measured`` is the growth of the critical path: (with reuse − without reuse) ÷ without reuse. Times are in seconds.
    ``compared`` counts the added edges. ``handles`` are those with added edges that aren't implied, the one with most
    of them first. ``on_critical_path`` are the added edges on the critical path with reuse; if that path grows, they
    are the reason. ``implied_example`` is an added edge that is implied, and ``implied_path`` the path that implies it.
    """

    unit: str = "added edges"
    num_not_implied: int
    critical_path: float
    critical_path_without_reuse: float
    handles: tuple[ReusedHandle, ...]
    on_critical_path: tuple[Dependency, ...]
    implied_example: Dependency | None
    implied_path: tuple[Dependency, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield f"critical path: {self.critical_path:.6f} s, without reuse {self.critical_path_without_reuse:.6f} s"
        yield from (f"on the critical path: {edge}" for edge in self.on_critical_path)
        # One line for all sub-batches and layers of a tensor.
        by_tensor: dict[str, list[ReusedHandle]] = {}
        for entry in self.handles:
            by_tensor.setdefault(re.split(r"[\[#@]", entry.handle, maxsplit=1)[0], []).append(entry)
        for tensor, entries in by_tensor.items():
            not_implied = sum(entry.num_not_implied for entry in entries)
            yield f"not implied: {not_implied} edges of {tensor}, for example {entries[0].example}"
        if self.implied_example:
            yield f"implied: {self.implied_example}, by {path_text(self.implied_path)}"


def check_reuse(trace: Trace, durations: NDArray[np.int64]) -> ReuseResult:
    """Compare the task flow with the same flow in which no handle is reused by a later step.

    In that flow the first ``WRITE`` of a handle in each step gets a fresh handle. Updates (``READ_WRITE``) and
    contributions (``REDUX``) keep theirs, and wait for those that read the old value in both flows.

    Passed: reuse doesn't make the critical path longer. The critical path is the time that the graph needs with any
    number of workers; with few workers, other work hides a part of the waiting. ``durations`` are nanoseconds for each
    task, such as ``typical_durations``.
    """
    flow = task_flow(trace.tasks, trace.accesses)
    num_tasks = len(flow)
    reused = graph_of(flow)
    renamed = _without_reuse(flow, trace.tasks["step"].tolist())
    is_added = ~np.isin(reused.before * num_tasks + reused.after, renamed.before * num_tasks + renamed.after)
    added = reused.with_edges(is_added)
    implied = renamed.implies(added.before, added.after)
    without, _ = renamed.critical_path(durations)
    length, path = reused.critical_path(durations)
    growth = (length - without) / without if without else 0.0

    links = set(pairwise(path))
    on_path = [edge for edge in map(added.edge, range(added.num_edges)) if (edge.before, edge.after) in links]
    example = added.edge(int(np.flatnonzero(implied)[0])) if implied.any() else None
    num_added, num_not_implied = _num_pairs(added), _num_pairs(added.with_edges(~implied))
    outcome = passed_if(growth <= 0) if without else Outcome.INCONCLUSIVE
    finding = f"{num_added} edges added, {num_not_implied} not implied; "
    finding += f"the critical path grows by {growth:.3%}, expected 0" if without else "no task took any time"
    return ReuseResult(
        name="handle reuse",
        outcome=outcome,
        finding=finding,
        compared=num_added,
        measured=growth,
        num_not_implied=num_not_implied,
        critical_path=length * 1e-9,
        critical_path_without_reuse=without * 1e-9,
        handles=tuple(_reused_handles(trace, added, implied)),
        on_critical_path=named_dependencies(trace, on_path[:MAX_LISTED]),
        implied_example=named_dependency(trace, example) if example else None,
        implied_path=named_dependencies(trace, renamed.shortest_path(example.before, example.after) if example else ()),
    )


def typical_durations(trace: Trace) -> NDArray[np.int64]:
    """Return for each task the shortest time, in nanoseconds, of the tasks with the same operation and handle sizes.

    The shortest, because other programs on the machine only make a task longer, and by chance some kinds more than
    others: then the critical path goes through tasks that it doesn't go through otherwise.
    """
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)
    sizes_of = sizes[trace.accesses["handle"]].tolist()
    alike: dict[tuple[int, ...], list[int]] = {}
    columns = (trace.tasks[name].tolist() for name in ("operation", "first_access", "num_accesses"))
    for index, (operation, start, count) in enumerate(zip(*columns, strict=True)):
        alike.setdefault((operation, *sizes_of[start : start + count]), []).append(index)
    measured: NDArray[np.int64] = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    durations = np.zeros_like(measured)
    for members in alike.values():
        durations[members] = measured[members].min()
    return durations


def _without_reuse(flow: TaskFlow, steps: Sequence[int]) -> TaskGraph:
    """Return the order of the flow with fresh handles, its edges labelled with the handles that these stand for."""
    originals: list[int] = []  # for each handle of the new flow the one that it stands for
    current: dict[int, int] = {}  # for each handle the one that stands for it
    renewed: dict[int, int] = {}  # for each handle the step in which it last got a fresh one
    renamed = []
    for accesses, step in zip(flow, steps, strict=True):
        for handle, mode in accesses:
            is_first_write = mode == AccessMode.WRITE and renewed.get(handle) != step
            if is_first_write:
                renewed[handle] = step
            if is_first_write or handle not in current:
                current[handle] = len(originals)
                originals.append(handle)
        renamed.append([(current[handle], mode) for handle, mode in accesses])
    return graph_of(renamed).with_handles(originals)


def _num_pairs(graph: TaskGraph) -> int:
    """Return how many pairs of tasks the edges join."""
    return sum(map(len, graph.predecessors))


def _reused_handles(trace: Trace, added: TaskGraph, implied: NDArray[np.bool_]) -> Iterator[ReusedHandle]:
    """Yield the handles with added edges that aren't implied, the one with most of them first."""
    num_added = np.bincount(added.handle, minlength=len(trace.handles))
    num_not_implied = np.bincount(added.handle[~implied], minlength=len(trace.handles))
    for handle in np.argsort(-num_not_implied, kind="stable").tolist():
        if num_not_implied[handle] == 0:
            return
        example = added.edge(int(np.flatnonzero(~implied & (added.handle == handle))[0]))
        name = trace.handles[handle].name
        yield ReusedHandle(name, int(num_added[handle]), int(num_not_implied[handle]), named_dependency(trace, example))
