"""The times at which tasks ran, compared with the required order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.dependencies.graph import Edge, TaskGraph
from starpullm.checks.dependencies.required_order import required_edges
from starpullm.checks.dependencies.wording import Dependency, named_dependencies, path_text
from starpullm.checks.result import MAX_LISTED, CheckResult, Outcome, listed, passed_if
from starpullm.checks.task_name import TaskName
from starpullm.trace import Trace


@dataclass(frozen=True, slots=True)
class Violation:
    """A task that started before the end of a task that it has to wait for.

    ``path`` is the shortest reason: one dependency, or several if tasks of other ranks are between the two.
    """

    path: tuple[Dependency, ...]
    overlap_ns: int

    def __str__(self) -> str:
        return f"{path_text(self.path)}: the last started {self.overlap_ns} ns before the end of the first"


@dataclass(frozen=True, kw_only=True)
class ObservedResult(CheckResult):
    """Whether the run kept the required order; ``measured`` counts violations.

    ``compared`` counts the required edges between two tasks of one rank, which have one clock. In ``num_free`` pairs of
    a rank's tasks the one that was submitted later started before the other had ended. A run without such pairs would
    have kept any order, so it counts as nothing compared. Up to ``max_parallel`` tasks ran at the same time.
    ``violations`` lists the first ``MAX_LISTED``.
    """

    unit: str = "required edges"
    num_tasks: int
    num_required: int
    num_free: int
    max_parallel: int
    violations: tuple[Violation, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield f"{self.num_tasks} tasks, up to {self.max_parallel} at a time; {self.num_free} pairs not as submitted"
        yield from listed(self.violations, int(self.measured or 0))


def check_observed(trace: Trace) -> ObservedResult:
    """Compare the times of tasks with the required order: a task may start when those that it waits for have ended.

    Only tasks of the same rank are compared, because every rank has its own clock. Their order can be required by a
    path through tasks of other ranks.
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
    num_free = 0
    for rank in np.unique(tasks["rank"][ran]).tolist():
        here = ran & (tasks["rank"] == rank)
        ends = end[here]
        paths += _violations_over_other_ranks(required, here, start, end)
        num_free += sum(int(np.sum(ends[:number] > begin)) for number, begin in enumerate(start[here]))
    by_pair: dict[tuple[int, int], list[Edge]] = {}
    for path in paths:
        by_pair.setdefault((path[0].before, path[-1].after), path)

    compared = int(same_rank.sum())
    if len(backwards):
        outcome = Outcome.FAILED  # of the recorder: what it says of other tasks proves nothing either
        name = TaskName.of(trace[int(backwards[0])])
        finding = f"{name}: found a start before its submission, or an end before its start"
    else:
        outcome = passed_if(not by_pair)
        finding = f"{compared} required edges compared, {len(by_pair)} violated"
        if num_free == 0:
            compared, finding = 0, "each task started after the end of all earlier ones, which keeps any order"
    return ObservedResult(
        name="observed order",
        outcome=outcome,
        finding=finding,
        compared=compared,
        measured=len(by_pair),
        num_tasks=int(ran.sum()),
        num_required=required.num_edges,
        num_free=num_free,
        max_parallel=_max_parallel(start[ran], end[ran]),
        violations=tuple(
            Violation(named_dependencies(trace, path), int(end[path[0].before] - start[path[-1].after]))
            for path in list(by_pair.values())[:MAX_LISTED]
        ),
    )


def _violations_over_other_ranks(
    required: TaskGraph, here: NDArray[np.bool_], start: NDArray[np.int64], end: NDArray[np.int64]
) -> Iterator[list[Edge]]:
    """Yield violated paths between two tasks of a rank; all tasks between them ran on other ranks."""
    elsewhere = ~here
    if not (elsewhere[required.before] & here[required.after]).any():
        return
    # For each task elsewhere: of the tasks here that it waits for, the last to end, and the edge on the path from it.
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
    """Return the largest number of intervals that overlap; those of which one starts when the other ends don't."""
    times = np.concatenate([end, start])
    changes = np.repeat([-1, 1], [len(end), len(start)])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max(initial=0))
