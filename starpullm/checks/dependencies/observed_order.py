"""The times at which tasks ran, compared with the required order."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import Case
from starpullm.checks.check import Check, Needs, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.labels import wrong_labels
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import trace_steps, traced_trainer
from starpullm.graph.required_order import path_text, required_edges
from starpullm.graph.task_graph import Edge, TaskGraph
from starpullm.trace import Trace


class Observation(NamedTuple):
    """What the times of tasks show.

    ``compared`` counts the required edges between two tasks of one rank, which have one clock. In ``num_free`` pairs of
    a rank's tasks the one that was submitted later started before the other had ended: a run without such pairs would
    have kept any order. Up to ``max_parallel`` tasks ran at the same time. ``backwards`` are the tasks that started
    before their submission, or ended before their start. ``violations`` are paths whose last task started before the
    end of the first one: one dependency, or several if tasks of other ranks are between the two.
    """

    compared: int
    num_free: int
    max_parallel: int
    backwards: Sequence[str]
    violations: Sequence[Sequence[Edge]]


@check
class ObservedOrder(Check):
    """Compare the times of a run's tasks with the order that their accesses require, and their labels with the data.

    Over ranks only tasks of the same rank are compared, because every rank has its own clock. Their order can be
    required by a path through tasks of other ranks.
    """

    family, unit = "dependencies", "required edges"
    claim = "no task begins before the tasks have ended that it has to wait for"
    fault = "a task began before one had ended that it has to wait for"
    cannot_see = "orders that did not happen in this run"
    needs = Needs(sharing=True)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Trace steps that are submitted without waiting between them."""
        with traced_trainer(context, case) as trainer:
            trace = trace_steps(trainer, case.seed)
        return self.judge(trace, list(wrong_labels(trace, context.runtime.ranks)))

    def judge(self, trace: Trace, labels: Sequence[str] = ()) -> Result:
        """Return the verdict on a trace, some of whose labels may be wrong.

        If each task started after the end of all earlier ones, which keeps any order, nothing was compared, and an
        `InvalidArgumentError` is raised.
        """
        found = observe(trace)
        # What a recorder that is wrong says of other tasks proves nothing either.
        wrong = [*found.backwards, *(f"label of {label}" for label in labels)]
        findings = wrong or [violation_text(trace, path) for path in found.violations]
        return self.result(
            compared=found.compared if found.num_free or findings else 0,
            findings=[Finding(sentence) for sentence in findings],
            note=f"up to {found.max_parallel} tasks at a time, {found.num_free} pairs not as submitted",
            num_free=found.num_free,
            max_parallel=found.max_parallel,
        )


def observe(trace: Trace) -> Observation:
    """Compare the times of tasks with the required order: a task may start when those that it waits for have ended."""
    tasks = trace.tasks
    required = required_edges(tasks, trace.accesses)
    ran, start, end = tasks["worker"] >= 0, tasks["start_ns"], tasks["end_ns"]
    own = tasks["rank"][required.before] == tasks["rank"][required.after]
    same_rank = ran[required.before] & ran[required.after] & own
    late = same_rank & (end[required.before] > start[required.after])
    paths = [[required.edge(edge)] for edge in np.flatnonzero(late).tolist()]
    num_free = 0
    for rank in np.unique(tasks["rank"][ran]).tolist():
        here = ran & (tasks["rank"] == rank)
        paths += _violations_over_other_ranks(required, here, start, end)
        num_free += _num_free(start[here], end[here])
    by_pair: dict[tuple[int, int], list[Edge]] = {}
    for path in paths:
        by_pair.setdefault((path[0].before, path[-1].after), path)
    backwards = np.flatnonzero(ran & ((start < tasks["submit_ns"]) | (end < start)))
    return Observation(
        compared=int(same_rank.sum()),
        num_free=num_free,
        max_parallel=_max_parallel(start[ran], end[ran]),
        backwards=[
            f"{trace[task]}: found a start before its submission, or an end before its start"
            for task in backwards.tolist()
        ],
        violations=list(by_pair.values()),
    )


def violation_text(trace: Trace, path: Sequence[Edge]) -> str:
    """Return a violated path, and by how much its last task started too early."""
    overlap = trace.tasks["end_ns"][path[0].before] - trace.tasks["start_ns"][path[-1].after]
    return f"{path_text(trace, path)}: the last started {overlap} ns before the end of the first"


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


def _num_free(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Return the number of pairs of which the later one starts before the earlier one ends."""
    count, ended = 0, list[int]()
    for number, (its_start, its_end) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        count += number - bisect_right(ended, its_start)
        insort(ended, its_end)
    return count


def _max_parallel(start: NDArray[np.int64], end: NDArray[np.int64]) -> int:
    """Return the largest number of intervals that overlap; those of which one starts when the other ends don't."""
    times = np.concatenate([end, start])
    changes = np.repeat([-1, 1], [len(end), len(start)])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max(initial=0))
