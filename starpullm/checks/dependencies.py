"""Dependencies: the order that the declared accesses require, against the runtime's graph, the run, and handle reuse.

Programs call the checks with ``Trainer.trace()``. Everything here follows from the order of submission and the access
modes alone; a task is named by its position in that order.

StarPU's rules, per handle: a read comes after the last write (read after write); a write comes after the last write and
after the reads since (write after write, write after read); reads commute. Consecutive contributions (``REDUX``)
commute too; together they come after what came before the first of them, as a ``READ_WRITE`` would, and before the next
access of another mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.trace import AccessMode, Trace

__all__ = [
    "Dependency",
    "DependencyKind",
    "Edge",
    "MissingOrder",
    "ObservedResult",
    "ReuseResult",
    "ReusedHandle",
    "RuntimeGraphResult",
    "SuperfluousOrder",
    "TaskGraph",
    "TaskName",
    "Violation",
    "check_observed",
    "check_reuse",
    "check_runtime_graph",
    "required_edges",
    "task_name",
    "typical_durations",
]

MAX_LISTED = 20
"""So many findings of a kind are kept one by one; their number is always the whole number."""

# Ancestors are kept as bit sets over so many tasks at a time: memory stays linear in the number of tasks.
_BLOCK = 4096


# ---- The graph ----


class DependencyKind(Enum):
    """Why one task has to wait for another."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"


_KINDS = tuple(DependencyKind)
_RAW, _WAR, _WAW = range(3)


class Edge(NamedTuple):
    """Two tasks in their order, and the access that puts them in it; numbers of tasks and of a handle."""

    before: int
    after: int
    handle: int
    kind: DependencyKind


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks 0 to ``num_tasks - 1``, and edges that all go from a lower to a higher number, sorted by the higher.

    The edges into task b are the entries ``first[b]`` to ``first[b + 1] - 1`` of ``before``, ``handle`` and ``kind`` (a
    position in ``DependencyKind``). Two tasks may be joined by several edges, one per handle.
    """

    first: NDArray[np.int64]
    before: NDArray[np.int64]
    handle: NDArray[np.int64]
    kind: NDArray[np.int8]

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return len(self.first) - 1

    @property
    def num_edges(self) -> int:
        """The number of edges, one per pair of tasks and handle."""
        return len(self.before)

    @cached_property
    def after(self) -> NDArray[np.int64]:
        """The later task of every edge."""
        return np.repeat(np.arange(self.num_tasks), np.diff(self.first))

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """For every task, those with an edge to it, each once, ascending."""
        before = self.before.tolist()
        return [sorted(set(before[start:end])) for start, end in pairwise(self.first.tolist())]

    def edge(self, index: int) -> Edge:
        """Return one edge."""
        return Edge(
            int(self.before[index]), int(self.after[index]), int(self.handle[index]), _KINDS[int(self.kind[index])]
        )

    def chosen(self, edges: NDArray[np.bool_]) -> TaskGraph:
        """Return the graph with these edges only."""
        first = np.concatenate([[0], np.cumsum(np.bincount(self.after[edges], minlength=self.num_tasks))])
        return TaskGraph(first, self.before[edges], self.handle[edges], self.kind[edges])

    def renamed_back(self, originals: Sequence[int]) -> TaskGraph:
        """Return the graph with ``originals[handle]`` in place of each handle."""
        return TaskGraph(self.first, self.before, np.array(originals, np.int64)[self.handle], self.kind)

    def implies(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each pair whether the graph has a path, direct or over other tasks, from `before` to `after`."""
        implied = np.zeros(len(before), bool)
        for base in range(0, self.num_tasks, _BLOCK):
            pairs = np.flatnonzero((before >= base) & (before < base + _BLOCK))
            if not len(pairs):
                continue
            ancestors = self._ancestors(base, int(after[pairs].max()))
            for pair, earlier, later in zip(pairs.tolist(), before[pairs].tolist(), after[pairs].tolist(), strict=True):
                implied[pair] = later > earlier and ancestors[later - base] >> (earlier - base) & 1
        return implied

    def reduced(self) -> TaskGraph:
        """Return the smallest graph with the same paths: without every edge that a longer path stands for."""
        needed = np.ones(self.num_edges, bool)
        for base in range(0, self.num_tasks, _BLOCK):
            edges = np.flatnonzero((self.before >= base) & (self.before < base + _BLOCK))
            if not len(edges):
                continue
            last = int(self.after[edges].max())
            ancestors = self._ancestors(base, last)
            indirect = [0] * (last - base + 1)
            for task in range(base, last + 1):
                for earlier in self.predecessors[task]:
                    if earlier >= base:
                        indirect[task - base] |= ancestors[earlier - base]
            for edge, earlier, later in zip(
                edges.tolist(), self.before[edges].tolist(), self.after[edges].tolist(), strict=True
            ):
                needed[edge] = not indirect[later - base] >> (earlier - base) & 1
        return self.chosen(needed)

    def _ancestors(self, base: int, last: int) -> list[int]:
        """For tasks `base` to `last`: bit i is set if task `base + i` is one of the block, and an ancestor."""
        ancestors = [0] * (last - base + 1)
        for task in range(base, last + 1):
            bits = 0
            for earlier in self.predecessors[task]:
                if earlier >= base:
                    bits |= ancestors[earlier - base]
                    if earlier < base + _BLOCK:
                        bits |= 1 << (earlier - base)
            ancestors[task - base] = bits
        return ancestors

    def shortest_path(self, before: int, after: int) -> list[Edge]:
        """Return the edges of a path with the fewest tasks; none if there is no path."""
        following: dict[int, int] = {}
        frontier = [after]
        while frontier and before not in following:
            reached = []
            for task in frontier:
                for earlier in self.predecessors[task]:
                    if earlier >= before and earlier not in following:
                        following[earlier] = task
                        reached.append(earlier)
            frontier = reached
        path = []
        task = before
        while task in following:
            path.append(self._edge_between(task, following[task]))
            task = following[task]
        return path

    def critical_path(self, durations: NDArray[np.int64]) -> tuple[int, list[int]]:
        """Return the time that the graph needs with any number of workers, and the tasks that it spends it in."""
        ends: list[int] = []
        through: list[int] = []
        for duration, predecessors in zip(durations.tolist(), self.predecessors, strict=True):
            latest = max(predecessors, key=ends.__getitem__, default=-1)
            through.append(latest)
            ends.append(duration + (ends[latest] if latest >= 0 else 0))
        task = max(range(len(ends)), key=ends.__getitem__, default=-1)
        length = ends[task] if task >= 0 else 0
        path = []
        while task >= 0:
            path.append(task)
            task = through[task]
        return length, path[::-1]

    def _edge_between(self, before: int, after: int) -> Edge:
        start, end = int(self.first[after]), int(self.first[after + 1])
        return self.edge(start + int(np.flatnonzero(self.before[start:end] == before)[0]))


class _HandleState:
    """Who has to be waited for by the next access of a handle."""

    __slots__ = ("before_group", "readers", "writers")

    def __init__(self) -> None:
        self.writers: list[int] = []  # the last writer, or all contributions of the last group
        self.readers: list[int] = []  # since then
        # Writers and readers before a group of contributions; None: the last write wasn't one.
        self.before_group: tuple[list[int], list[int]] | None = None

    def access(self, task: int, mode: int) -> Iterator[tuple[int, int]]:
        """Yield the tasks that this access waits for, each with the kind, and remember it."""
        if mode == AccessMode.REDUX and self.before_group is not None and not self.readers:
            earlier_writers, earlier_readers = self.before_group
        else:
            earlier_writers, earlier_readers = self.writers, self.readers
        if mode != AccessMode.WRITE:
            yield from ((writer, _RAW) for writer in earlier_writers)
        elif not earlier_readers:
            yield from ((writer, _WAW) for writer in earlier_writers)
        if mode == AccessMode.READ:
            self.readers.append(task)
            return
        yield from ((reader, _WAR) for reader in earlier_readers)
        if mode != AccessMode.REDUX:
            self.writers, self.readers, self.before_group = [task], [], None
        elif earlier_writers is self.writers:
            self.writers, self.readers, self.before_group = [task], [], (earlier_writers, earlier_readers)
        else:
            self.writers.append(task)


_Flow = Sequence[Sequence[tuple[int, int]]]  # for every task its handles and modes


def _flow(tasks: NDArray[np.void], accesses: NDArray[np.void]) -> list[list[tuple[int, int]]]:
    """Return for every task its handles and modes, each handle once."""
    modes = accesses["mode"]
    unknown = np.flatnonzero((modes < AccessMode.READ) | (modes > AccessMode.REDUX))
    if len(unknown):
        raise InvalidArgumentError(
            f"access {unknown[0]}: found mode {modes[unknown[0]]}, expected {int(AccessMode.READ)} to "
            f"{int(AccessMode.REDUX)}"
        )
    pairs = list(zip(accesses["handle"].tolist(), modes.tolist(), strict=True))
    flow = []
    for start, count in zip(tasks["first_access"].tolist(), tasks["num_accesses"].tolist(), strict=True):
        listed = pairs[start : start + count]
        merged = dict(listed)
        if len(merged) < len(listed):
            for handle in merged:
                # Two different modes of one handle are at least a read and a write.
                different = {mode for listed_handle, mode in listed if listed_handle == handle}
                merged[handle] = different.pop() if len(different) == 1 else int(AccessMode.READ_WRITE)
        flow.append(list(merged.items()))
    return flow


def _graph(flow: _Flow) -> TaskGraph:
    states: dict[int, _HandleState] = {}
    first = [0]
    edges: list[tuple[int, int, int]] = []
    for task, accesses in enumerate(flow):
        for handle, mode in accesses:
            state = states.get(handle)
            if state is None:
                state = states[handle] = _HandleState()
            edges += [(earlier, handle, kind) for earlier, kind in state.access(task, mode)]
        first.append(len(edges))
    table = np.array(edges, np.int64).reshape(-1, 3)
    return TaskGraph(np.array(first, np.int64), table[:, 0], table[:, 1], table[:, 2].astype(np.int8))


def required_edges(tasks: NDArray[np.void], accesses: NDArray[np.void]) -> TaskGraph:
    """Return the order that the accesses require: the oracle of all checks here.

    Every pair that must be ordered is joined by a path; there are edges only between an access and the last that
    conflicts with it, and every read (also of a ``READ_WRITE``) has one from the task that wrote what it reads.

    Parameters
    ----------
    tasks, accesses
        As ``Trace`` has them, in the order of submission.

    Raises
    ------
    InvalidArgumentError
        If an access mode isn't one of ``AccessMode``.
    """
    return _graph(_flow(tasks, accesses))


# ---- Names for people ----


@dataclass(frozen=True, slots=True)
class TaskName:
    """What a person calls a task; -1 for a sub-batch or layer that there is none of, and a worker that never ran it."""

    id: int
    operation: str
    step: int
    sub_batch: int
    layer: int
    rank: int
    worker: int

    def __str__(self) -> str:
        parts = [f"step {self.step}"]
        if self.sub_batch >= 0:
            parts.append(f"sub-batch {self.sub_batch}")
        if self.layer >= 0:
            parts.append(f"layer {self.layer}")
        return f"{self.operation} ({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Two tasks that a handle puts in order."""

    before: TaskName
    after: TaskName
    handle: str
    kind: DependencyKind

    def __str__(self) -> str:
        return f"{self.before} → {self.after}: {self.kind.value} of {self.handle}"


def task_name(trace: Trace, index: int) -> TaskName:
    """Return what a person calls the trace's index-th task."""
    task = trace.tasks[index]
    numbers = {name: int(task[name]) for name in ("id", "step", "sub_batch", "layer", "rank", "worker")}
    return TaskName(operation=trace.operations[int(task["operation"])], **numbers)


def _dependency(trace: Trace, edge: Edge) -> Dependency:
    return Dependency(
        task_name(trace, edge.before), task_name(trace, edge.after), trace.handles[edge.handle].name, edge.kind
    )


def _dependencies(trace: Trace, edges: Iterable[Edge]) -> tuple[Dependency, ...]:
    return tuple(_dependency(trace, edge) for edge in edges)


def _chain(path: Sequence[Dependency]) -> str:
    """Name a path: its tasks with the handles between them."""
    return f"{path[0].before}" + "".join(f" → [{step.handle}] {step.after}" for step in path)


def _and_more(count: int, listed: int) -> Iterator[str]:
    if count > listed:
        yield f"… and {count - listed} more"


# ---- (1) Against the runtime's own graph ----


@dataclass(frozen=True, slots=True)
class MissingOrder:
    """A required edge that the runtime's graph has no path for; ``handles`` are all that require it."""

    dependency: Dependency
    handles: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.dependency)


@dataclass(frozen=True, slots=True)
class SuperfluousOrder:
    """An edge of the runtime that nothing requires.

    ``common`` are the handles that both tasks access, with the modes: two reads of a handle commute.
    """

    before: TaskName
    after: TaskName
    common: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.before} → {self.after}: " + (", ".join(self.common) or "no handle in common")


@dataclass(frozen=True, kw_only=True)
class RuntimeGraphResult(CheckResult):
    """How the runtime's graph compares with the required order; ``measured`` counts missing and superfluous edges.

    Required edges are counted without those that a longer path stands for. ``missing`` and ``superfluous`` list the
    first ``MAX_LISTED``, in the order of submission of the later task.
    """

    num_tasks: int
    num_required: int
    num_runtime: int
    num_missing: int
    num_superfluous: int
    missing: tuple[MissingOrder, ...]
    superfluous: tuple[SuperfluousOrder, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield from (f"missing: {entry}" for entry in self.missing)
        yield from _and_more(self.num_missing, len(self.missing))
        yield from (f"superfluous: {entry}" for entry in self.superfluous)
        yield from _and_more(self.num_superfluous, len(self.superfluous))


def check_runtime_graph(
    trace: Trace, runtime_edges: ArrayLike, *, held: ArrayLike | None = None, superfluous_fails: bool = True
) -> RuntimeGraphResult:
    """Compare the graph that the runtime made of the submitted tasks with the required order.

    Passed: every required edge is there, directly or over other tasks, and every edge of the runtime is required,
    directly or over other tasks.

    Parameters
    ----------
    trace
        The recorded tasks.
    runtime_edges
        Integers (E, 2): ids of a task and of one that the runtime lets wait for it. Ids that the trace doesn't have are
        the runtime's own (synchronisation) tasks: only the order that they pass on counts.
    held
        Ids of the tasks that were held back while the runtime was asked; None: all. Of tasks that have run a runtime
        doesn't know successors, so only pairs of these are compared. Tasks between two of them, in the order of
        submission, must be among them.
    superfluous_fails
        Whether superfluous edges alone make the outcome ``FAILED``; they cost time and never a wrong result.

    Raises
    ------
    InvalidArgumentError
        If an edge or a held task isn't one.
    """
    ids = trace.tasks["id"]
    edges = np.asarray(runtime_edges, np.int64).reshape(-1, 2)
    is_held = np.ones(len(ids), bool) if held is None else np.isin(ids, np.asarray(held, np.int64))
    positions = np.flatnonzero(is_held)
    if len(positions) and positions[-1] - positions[0] + 1 != len(positions):
        raise InvalidArgumentError("held: found a task between two held ones that isn't held, expected none")
    required = required_edges(trace.tasks, trace.accesses)
    required = required.chosen(is_held[required.before] & is_held[required.after]).reduced()
    pairs = _contracted(edges, dict(zip(ids.tolist(), range(len(ids)), strict=True)), is_held)
    runtime = _plain_graph(len(ids), pairs)

    missing = np.flatnonzero(~runtime.implies(required.before, required.after))
    by_pair: dict[tuple[int, int], list[Edge]] = {}
    for index in missing.tolist():
        edge = required.edge(index)
        by_pair.setdefault((edge.before, edge.after), []).append(edge)
    superfluous = np.flatnonzero(~required.implies(runtime.before, runtime.after))

    num_required = len(np.unique(required.before * len(ids) + required.after))
    bad = len(by_pair) + (len(superfluous) if superfluous_fails else 0)
    if num_required == 0:
        outcome, finding = Outcome.INCONCLUSIVE, "nothing has to be in order, so nothing was shown"
    else:
        outcome = Outcome.FAILED if bad else Outcome.PASSED
        finding = f"{num_required} required edges, {len(by_pair)} missing; {runtime.num_edges} edges of the runtime, "
        finding += f"{len(superfluous)} superfluous"
    flow = _flow(trace.tasks, trace.accesses)
    return RuntimeGraphResult(
        name="runtime graph",
        outcome=outcome,
        finding=finding,
        measured=len(by_pair) + len(superfluous),
        limit=0 if superfluous_fails else None,
        num_tasks=len(positions),
        num_required=num_required,
        num_runtime=runtime.num_edges,
        num_missing=len(by_pair),
        num_superfluous=len(superfluous),
        missing=tuple(
            MissingOrder(_dependency(trace, found[0]), tuple(trace.handles[edge.handle].name for edge in found))
            for found in list(by_pair.values())[:MAX_LISTED]
        ),
        superfluous=tuple(
            _superfluous(trace, flow, int(runtime.before[edge]), int(runtime.after[edge]))
            for edge in superfluous[:MAX_LISTED].tolist()
        ),
    )


def _contracted(
    edges: NDArray[np.int64], position_of: dict[int, int], is_held: NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Return the pairs of positions that the edges join, directly or over tasks that the trace doesn't have."""
    successors: dict[int, list[int]] = {}
    for before, after in edges.tolist():
        if before in position_of and after in position_of and position_of[before] >= position_of[after]:
            raise InvalidArgumentError(
                f"runtime edge {before} → {after}: found a task that waits for one submitted after it, expected before"
            )
        successors.setdefault(before, []).append(after)
    pairs = set()
    for before, reached in successors.items():
        if before not in position_of or not is_held[position_of[before]]:
            continue
        seen: set[int] = set()
        unvisited = list(reached)
        while unvisited:
            task = unvisited.pop()
            if task in seen:
                continue
            seen.add(task)
            if task not in position_of:
                unvisited += successors.get(task, [])
            elif is_held[position_of[task]]:
                pairs.add((position_of[before], position_of[task]))
    return sorted(pairs, key=lambda pair: pair[::-1])


def _plain_graph(num_tasks: int, pairs: Sequence[tuple[int, int]]) -> TaskGraph:
    """Return the graph of edges that no handle is known of; sorted by the later task."""
    table = np.array(pairs, np.int64).reshape(-1, 2)
    first = np.searchsorted(table[:, 1], np.arange(num_tasks + 1))
    return TaskGraph(first, table[:, 0], np.full(len(table), -1), np.zeros(len(table), np.int8))


def _superfluous(trace: Trace, flow: _Flow, before: int, after: int) -> SuperfluousOrder:
    earlier, later = dict(flow[before]), dict(flow[after])
    common = tuple(
        f"{trace.handles[handle].name} ({_mode_name(mode)}, {_mode_name(later[handle])})"
        for handle, mode in earlier.items()
        if handle in later
    )
    return SuperfluousOrder(task_name(trace, before), task_name(trace, after), common)


def _mode_name(mode: int) -> str:
    return AccessMode(mode).name.lower().replace("_", "-")


# ---- (1) Against the run ----


@dataclass(frozen=True, slots=True)
class Violation:
    """A task that started before one had ended that it has to wait for.

    ``path`` is the shortest reason: one dependency, or several if tasks of other ranks stand between the two.
    """

    path: tuple[Dependency, ...]
    overlap_ns: int

    def __str__(self) -> str:
        return f"{_chain(self.path)}: started {self.overlap_ns} ns before the end of what it has to wait for"


@dataclass(frozen=True, kw_only=True)
class ObservedResult(CheckResult):
    """Whether the run kept the required order; ``measured`` counts violations.

    ``num_compared`` of ``num_required`` edges join two tasks of one rank and were compared by the clock;
    ``num_overtaken`` tasks started after one that was submitted later, and up to ``max_parallel`` ran at a time:
    where neither happens, any graph would have been kept. ``violations`` list the first ``MAX_LISTED``.
    """

    num_tasks: int
    num_required: int
    num_compared: int
    num_overtaken: int
    max_parallel: int
    violations: tuple[Violation, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield f"{self.num_overtaken} of {self.num_tasks} tasks were overtaken, up to {self.max_parallel} at a time"
        yield from map(str, self.violations)
        yield from _and_more(int(self.measured or 0), len(self.violations))


def check_observed(trace: Trace) -> ObservedResult:
    """Compare the intervals in which tasks ran with the required order: a task starts when those before it have ended.

    Only tasks of the same rank are compared, since each has a clock of its own; their order may be required over tasks
    of other ranks.
    """
    tasks = trace.tasks
    required = required_edges(tasks, trace.accesses)
    ran = tasks["worker"] >= 0
    start, end = tasks["start_ns"], tasks["end_ns"]
    backwards = np.flatnonzero(ran & ((start < tasks["submit_ns"]) | (end < start)))
    same_rank = (
        ran[required.before] & ran[required.after] & (tasks["rank"][required.before] == tasks["rank"][required.after])
    )
    late = same_rank & (end[required.before] > start[required.after])
    paths = [[required.edge(edge)] for edge in np.flatnonzero(late).tolist()]
    for rank in np.unique(tasks["rank"][ran]).tolist():
        paths += _violations_over_other_ranks(required, ran & (tasks["rank"] == rank), start, end)
    by_pair: dict[tuple[int, int], list[Edge]] = {}
    for path in paths:
        by_pair.setdefault((path[0].before, path[-1].after), path)

    compared = int(same_rank.sum())
    if len(backwards):
        outcome = Outcome.NOT_COMPARABLE
        finding = f"{task_name(trace, int(backwards[0]))}: found a time before the one it comes after"
    elif compared == 0:
        outcome, finding = Outcome.INCONCLUSIVE, "no two tasks of a rank have to be in order, so nothing was shown"
    else:
        outcome = Outcome.FAILED if by_pair else Outcome.PASSED
        finding = f"{compared} required edges compared, {len(by_pair)} violated"
    ran_start = start[ran]
    return ObservedResult(
        name="observed order",
        outcome=outcome,
        finding=finding,
        measured=len(by_pair),
        limit=0,
        num_tasks=int(ran.sum()),
        num_required=required.num_edges,
        num_compared=compared,
        num_overtaken=int((ran_start[:-1] > np.minimum.accumulate(ran_start[::-1])[::-1][1:]).sum()),
        max_parallel=_max_parallel(ran_start, end[ran]),
        violations=tuple(
            Violation(_dependencies(trace, path), int(end[path[0].before] - start[path[-1].after]))
            for path in list(by_pair.values())[:MAX_LISTED]
        ),
    )


def _violations_over_other_ranks(
    required: TaskGraph, here: NDArray[np.bool_], start: NDArray[np.int64], end: NDArray[np.int64]
) -> Iterator[list[Edge]]:
    """Yield violated paths between two tasks of a rank, all others of which ran elsewhere."""
    elsewhere = ~here
    if not (elsewhere[required.before] & here[required.after]).any():
        return
    # For every task elsewhere: the last to end of the tasks here that it waits for, and the edge towards it.
    latest: dict[int, tuple[int, int]] = {}
    for edge, (before, after) in enumerate(zip(required.before.tolist(), required.after.tolist(), strict=True)):
        origin = before if here[before] else latest[before][0] if before in latest else None
        if origin is None:
            continue
        if elsewhere[after]:
            if after not in latest or end[origin] > end[latest[after][0]]:
                latest[after] = origin, edge
        elif elsewhere[before] and end[origin] > start[after]:
            path = [required.edge(edge)]
            while path[0].before != origin:
                path.insert(0, required.edge(latest[path[0].before][1]))
            yield path


def _max_parallel(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Return how many intervals have a point in common; an end and a start at one time don't."""
    times = np.concatenate([end, start])
    changes = np.repeat([-1, 1], [len(end), len(start)])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max(initial=0))


# ---- (2) Reuse ----


@dataclass(frozen=True, slots=True)
class ReusedHandle:
    """What reusing one handle adds: edges, those of them that no path of the flow without reuse implies, an example."""

    handle: str
    num_added: int
    num_not_implied: int
    example: Dependency


@dataclass(frozen=True, kw_only=True)
class ReuseResult(CheckResult):
    """What reusing handles adds to the order, and to the critical path.

    ``measured`` and ``limit`` are the part by which the critical path grows: (with reuse − without) ÷ without. Times
    are in seconds. ``handles`` are those with added edges that aren't implied, the one with most first;
    ``on_critical_path`` are the added edges on the critical path with reuse: where it grows, these are why.
    ``implied_example`` is an added edge and ``implied_path`` the order that there is without it.
    """

    fresh: str
    num_tasks: int
    num_edges: int
    num_added: int
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
        alike: dict[str, list[ReusedHandle]] = {}
        for entry in self.handles:
            alike.setdefault(_tensor_name(entry.handle), []).append(entry)
        for tensor, entries in alike.items():
            not_implied = sum(entry.num_not_implied for entry in entries)
            yield f"not implied: {not_implied} edges of {tensor}, for example {entries[0].example}"
        if self.implied_example:
            yield f"implied: {self.implied_example}, by {_chain(self.implied_path)}"


def check_reuse(
    trace: Trace,
    *,
    fresh: Literal["step", "write"] = "step",
    updates_in_place: bool = True,
    durations: NDArray[np.int64] | None = None,
    limit: float = 0.0,
) -> ReuseResult:
    """Compare the flow with the same flow in which what is written gets a fresh handle, so that nothing is reused.

    Passed: the critical path of the flow with reuse is longer by at most the limit. That path is the time that the
    graph needs with any number of workers; with few, waiting for work done elsewhere hides part of it.

    Parameters
    ----------
    trace
        The recorded tasks.
    fresh
        ``"step"``: every step's first ``WRITE`` of a handle gets a fresh one, so that what is compared is reuse across
        steps; ``"write"``: every ``WRITE`` does.
    updates_in_place
        A ``READ_WRITE`` is a true dependence on what it reads. True: it keeps the handle in both flows, and waits for
        those that read the old value. False: it gets a fresh handle as well, under the same rule. Contributions
        (``REDUX``) always keep theirs.
    durations
        Nanoseconds per task; None: as measured. ``typical_durations`` are less noisy.
    limit
        By which part the critical path may grow.
    """
    flow = _flow(trace.tasks, trace.accesses)
    steps = trace.tasks["step"].tolist()
    reused = _graph(flow)
    renamed_flow, originals = _renamed(flow, steps, across_steps=fresh == "step", updates_in_place=updates_in_place)
    renamed = _graph(renamed_flow).renamed_back(originals)
    num_tasks = len(flow)
    is_added = ~np.isin(reused.before * num_tasks + reused.after, renamed.before * num_tasks + renamed.after)
    added = reused.chosen(is_added)
    implied = renamed.implies(added.before, added.after)

    times = _durations(trace) if durations is None else np.asarray(durations, np.int64)
    if times.shape != (num_tasks,):
        raise InvalidArgumentError(f"durations: found shape {times.shape}, expected ({num_tasks},)")
    without, _ = renamed.critical_path(times)
    length, path = reused.critical_path(times)
    loss = (length - without) / without if without else 0.0
    links = set(pairwise(path))
    on_path = [edge for edge in map(added.edge, range(added.num_edges)) if (edge.before, edge.after) in links]

    pairs = _num_pairs(added)
    not_implied = _num_pairs(added.chosen(~implied))
    if not np.all(trace.tasks["worker"] >= 0) and durations is None:
        outcome, finding = Outcome.INCONCLUSIVE, "some tasks have no duration: they haven't run, or ran on another rank"
    elif pairs == 0:
        outcome, finding = Outcome.INCONCLUSIVE, "no handle is reused, so nothing was shown"
    elif without == 0:
        outcome, finding = Outcome.INCONCLUSIVE, "no task took any time"
    else:
        outcome = Outcome.PASSED if loss <= limit else Outcome.FAILED
        finding = f"{pairs} edges added, {not_implied} not implied; the critical path grows by {loss:.3%}"
        finding += f", expected at most {limit:.3%}"
    example = int(np.flatnonzero(implied)[0]) if implied.any() else None
    return ReuseResult(
        name="handle reuse",
        outcome=outcome,
        finding=finding,
        measured=loss,
        limit=limit,
        fresh=fresh,
        num_tasks=num_tasks,
        num_edges=reused.num_edges,
        num_added=pairs,
        num_not_implied=not_implied,
        critical_path=length * 1e-9,
        critical_path_without_reuse=without * 1e-9,
        handles=tuple(_reused_handles(trace, added, implied)),
        on_critical_path=_dependencies(trace, on_path[:MAX_LISTED]),
        implied_example=None if example is None else _dependency(trace, added.edge(example)),
        implied_path=()
        if example is None
        else _dependencies(trace, renamed.shortest_path(int(added.before[example]), int(added.after[example]))),
    )


def typical_durations(trace: Trace) -> NDArray[np.int64]:
    """Return for every task the median time in nanoseconds of the tasks with its operation and sizes of handles."""
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)
    sizes_of = sizes[trace.accesses["handle"]].tolist()
    alike: dict[tuple[int, ...], list[int]] = {}
    for index, task in enumerate(zip(*(trace.tasks[name].tolist() for name in _SHAPE), strict=True)):
        operation, start, count = task
        alike.setdefault((operation, *sizes_of[start : start + count]), []).append(index)
    measured = _durations(trace)
    durations = np.zeros_like(measured)
    for members in alike.values():
        durations[members] = int(np.median(measured[members]))
    return durations


_SHAPE = ("operation", "first_access", "num_accesses")


def _durations(trace: Trace) -> NDArray[np.int64]:
    durations: NDArray[np.int64] = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    return durations


def _renamed(
    flow: _Flow, steps: Sequence[int], *, across_steps: bool, updates_in_place: bool
) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """Return the flow with fresh handles, and for each handle in it the one that it stands for.

    Across steps, only what a step writes first of a handle gets a fresh one.
    """
    originals: list[int] = []
    current: dict[int, int] = {}  # handle to the one that stands for it
    renewed: dict[int, int] = {}  # handle to the step in which it was last given a fresh one

    def fresh(handle: int) -> int:
        originals.append(handle)
        current[handle] = len(originals) - 1
        return current[handle]

    renamed = []
    for accesses, step in zip(flow, steps, strict=True):
        entries = []
        for handle, mode in accesses:
            version = current[handle] if handle in current else fresh(handle)
            updates = mode == AccessMode.WRITE or (mode == AccessMode.READ_WRITE and not updates_in_place)
            if not updates or (across_steps and renewed.get(handle) == step):
                entries.append((version, mode))
                continue
            if mode == AccessMode.READ_WRITE:
                entries.append((version, int(AccessMode.READ)))
            renewed[handle] = step
            entries.append((fresh(handle), int(AccessMode.WRITE)))
        renamed.append(entries)
    return renamed, originals


def _tensor_name(handle: str) -> str:
    """Return a handle's name without layer, slot and sub-batch."""
    return re.split(r"[\[#@]", handle, maxsplit=1)[0]


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
        example = int(np.flatnonzero(~implied & (added.handle == handle))[0])
        yield ReusedHandle(
            trace.handles[handle].name,
            int(num_added[handle]),
            int(num_not_implied[handle]),
            _dependency(trace, added.edge(example)),
        )
