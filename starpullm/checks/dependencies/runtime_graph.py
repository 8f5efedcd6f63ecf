"""StarPU's own graph of the submitted tasks, compared with the required order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.dependencies.graph import Edge, TaskGraph
from starpullm.checks.dependencies.required_order import TaskFlow, graph_of, task_flow
from starpullm.checks.dependencies.wording import Dependency, named_dependencies
from starpullm.checks.result import MAX_LISTED, CheckResult, listed, passed_if
from starpullm.checks.task_name import TaskName
from starpullm.errors import InvalidArgumentError
from starpullm.trace import AccessMode, Trace


@dataclass(frozen=True, slots=True)
class SuperfluousOrder:
    """An edge of the runtime that nothing requires; ``common`` are the handles of both tasks with their modes."""

    before: TaskName
    after: TaskName
    common: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.before} → {self.after}: " + (", ".join(self.common) or "no handle in common")


@dataclass(frozen=True, kw_only=True)
class RuntimeGraphResult(CheckResult):
    """How the runtime's graph differs from the required order; ``measured`` counts missing and superfluous edges.

    ``compared`` counts required edges. Those that a longer path implies aren't counted. ``missing`` (no path of the
    runtime's graph) and ``superfluous`` list the first ``MAX_LISTED``, in the order of submission of the later task.
    """

    unit: str = "required edges"
    num_runtime: int
    num_missing: int
    num_superfluous: int
    missing: tuple[Dependency, ...]
    superfluous: tuple[SuperfluousOrder, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield from listed(self.missing, self.num_missing, "missing: ")
        yield from listed(self.superfluous, self.num_superfluous, "superfluous: ")


def check_runtime_graph(trace: Trace, runtime_edges: ArrayLike) -> RuntimeGraphResult:
    """Compare the graph that the runtime made of the submitted tasks with the required order.

    Passed: every required edge is implied by a path of the runtime's graph, and every edge of the runtime by a path of
    required edges.

    Parameters
    ----------
    trace
        The recorded tasks. None of them has started when the runtime is asked: it forgets the successors of tasks that
        have run.
    runtime_edges
        Integers (E, 2): ids of a task and of a task that waits for it. Ids that the trace doesn't have are tasks that
        the runtime created itself, for synchronisation; they count only as links of a path.

    Raises
    ------
    InvalidArgumentError
        If an edge goes from a task to one that was submitted before it.
    """
    ids = trace.tasks["id"]
    flow = task_flow(trace.tasks, trace.accesses)
    required = graph_of(flow).reduced()
    position_of = dict(zip(ids.tolist(), range(len(ids)), strict=True))
    runtime = _plain_graph(len(ids), _contracted(np.asarray(runtime_edges, np.int64).reshape(-1, 2), position_of))

    missing: dict[tuple[int, int], Edge] = {}
    for index in np.flatnonzero(~runtime.implies(required.before, required.after)).tolist():
        edge = required.edge(index)
        missing.setdefault((edge.before, edge.after), edge)
    superfluous = np.flatnonzero(~required.implies(runtime.before, runtime.after))

    num_required = len(np.unique(required.before * len(ids) + required.after))
    bad = len(missing) + len(superfluous)
    return RuntimeGraphResult(
        name="runtime graph",
        outcome=passed_if(not bad),
        finding=f"{num_required} required edges, {len(missing)} missing; {runtime.num_edges} edges of the runtime, "
        f"{len(superfluous)} superfluous",
        compared=num_required,
        measured=bad,
        num_runtime=runtime.num_edges,
        num_missing=len(missing),
        num_superfluous=len(superfluous),
        missing=named_dependencies(trace, list(missing.values())[:MAX_LISTED]),
        superfluous=tuple(
            _superfluous(trace, flow, int(runtime.before[edge]), int(runtime.after[edge]))
            for edge in superfluous[:MAX_LISTED].tolist()
        ),
    )


def _contracted(edges: NDArray[np.int64], position_of: dict[int, int]) -> list[tuple[int, int]]:
    """Return the pairs of recorded tasks that are joined directly or by a path of the runtime's own tasks."""
    successors: dict[int, list[int]] = {}
    for before, after in edges.tolist():
        if before in position_of and after in position_of and position_of[before] >= position_of[after]:
            raise InvalidArgumentError(
                f"runtime edge {before} → {after}: found a task that waits for one submitted after it, expected before"
            )
        successors.setdefault(before, []).append(after)
    pairs = set()
    for before in successors.keys() & position_of.keys():
        seen: set[int] = set()
        unvisited = list(successors[before])
        while unvisited:
            task = unvisited.pop()
            if task in seen:
                continue
            seen.add(task)
            if task in position_of:
                pairs.add((position_of[before], position_of[task]))
            else:
                unvisited += successors.get(task, [])
    return sorted(pairs, key=lambda pair: pair[::-1])


def _plain_graph(num_tasks: int, pairs: Sequence[tuple[int, int]]) -> TaskGraph:
    """Return the graph of edges without handles; the pairs are sorted by the later task."""
    table = np.array(pairs, np.int64).reshape(-1, 2)
    first = np.searchsorted(table[:, 1], np.arange(num_tasks + 1))
    return TaskGraph(first, table[:, 0], np.full(len(table), -1), np.zeros(len(table), np.int8))


def _superfluous(trace: Trace, flow: TaskFlow, before: int, after: int) -> SuperfluousOrder:
    earlier, later = dict(flow[before]), dict(flow[after])
    common = tuple(
        f"{trace.handles[handle].name} ({_mode_name(mode)}, {_mode_name(later[handle])})"
        for handle, mode in earlier.items()
        if handle in later
    )
    return SuperfluousOrder(TaskName.of(trace[before]), TaskName.of(trace[after]), common)


def _mode_name(mode: int) -> str:
    return AccessMode(mode).name.lower().replace("_", "-")
