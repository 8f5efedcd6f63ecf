"""Tests of the merge of traces: the rank that ran a task tells its times, and all times are those of one clock."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from starpullm.errors import RuntimeFailureError
from starpullm.graph.merge import on_one_clock
from starpullm.processes.clocks import ClockReading
from starpullm.trace import Trace, with_other_ranks

from .traces import trace_of

AHEAD = 1000
"""By which the clock of rank 1 is ahead of that of rank 0."""


def traces_of_ranks() -> list[Trace]:
    """A task of each rank, and a message from rank 0 to 1, which both have recorded; the end at rank 1 is later."""
    found = []
    for rank in range(2):
        trace = trace_of([[], [], []], {"x": 4}, ("work", "transfer"), operation=[0, 1, 0], rank=[0, 0, 1], worker=-1)
        tasks = trace.tasks
        own = 2 * rank
        tasks["worker"][own] = 5 + rank
        shift = AHEAD * rank
        tasks["start_ns"][own], tasks["end_ns"][own] = 2000 + 700 * rank + shift, 2500 + 700 * rank + shift
        tasks["end_ns"][1] = 2550 + 100 * rank + shift
        found.append(trace)
    return found


class Rank:
    """What a merge asks of a communicator: the first call collects what each rank sends, the second one has all."""

    def __init__(self, rank: int, parts: dict[int, Any]) -> None:
        self._rank, self._parts = rank, parts

    def Get_rank(self) -> int:  # noqa: N802
        return self._rank

    def allgather(self, own: Any) -> list[Any]:
        self._parts[self._rank] = own
        return [self._parts.get(rank, own) for rank in range(2)]


def merged(traces: list[Trace]) -> list[Trace]:
    parts: dict[int, Any] = {}
    readings = [ClockReading(at_ns=0, ahead_ns=AHEAD * rank) for rank in range(2)]

    def merge(rank: int) -> Trace:
        return on_one_clock(traces[rank], cast(Any, Rank(rank, parts)), readings[rank], readings[rank])

    for rank in range(2):
        merge(rank)
    return [merge(rank) for rank in range(2)]


def test_all_ranks_have_the_same_times() -> None:
    traces = traces_of_ranks()
    before = [trace.tasks.copy() for trace in traces]
    for trace in merged(traces):
        assert trace.tasks["worker"].tolist() == [5, -1, 6]
        assert trace.tasks["start_ns"].tolist() == [2000, 0, 2700]
        assert trace.tasks["end_ns"].tolist() == [2500, 2650, 3200]
        assert trace.tasks["submit_ns"].tolist() == [0, 0, 0]  # unknown
    assert all((trace.tasks == tasks).all() for trace, tasks in zip(traces, before, strict=True))


def test_one_rank_is_its_own_clock() -> None:
    trace = traces_of_ranks()[0]
    assert on_one_clock(trace, None, ClockReading(0), ClockReading(0)) is trace


class Ranks:
    """What the joining of traces asks of a communicator."""

    def __init__(self, rank: int, traces: list[Trace]) -> None:
        self._rank, self._traces = rank, traces

    def Get_rank(self) -> int:  # noqa: N802
        return self._rank

    def allgather(self, own: Any) -> list[Any]:
        assert own[0] is self._traces[self._rank].tasks
        return [(trace.tasks, trace.accesses) for trace in self._traces]


def recorded(rank: int, ids: list[int], operations: list[int], accessed: list[list[int]]) -> Trace:
    flow = [[(handle, 1) for handle in handles] for handles in accessed]
    sizes = {f"h{number}": 4 for number in range(9)}
    columns = {"id": ids, "operation": operations, "rank": rank, "worker": 5 + rank}
    trace = trace_of(flow, sizes, ("work", "transfer"), **columns)
    for place, name in enumerate(("submit_ns", "start_ns", "end_ns")):
        trace.tasks[name] = 100 * np.arange(1, len(ids) + 1) + 10 * place + rank
    trace.tasks["rank"][trace.tasks["operation"] == 1] = 1  # a message's is the receiver
    return trace


def pruned() -> list[Trace]:
    """Rank 0 runs tasks 1 and 4, rank 1 tasks 0 and 3; task 2 is a message from rank 0 to 1."""
    return [
        recorded(0, [1, 2, 4], [0, 1, 0], [[1], [2, 3], []]),
        recorded(1, [0, 2, 3], [0, 1, 0], [[4, 5], [2, 3], [6]]),
    ]


@pytest.mark.parametrize(
    ("rank", "workers", "submitted", "ended"),
    [(0, [-1, 5, 5, -1, 5], [100, 100, 200, 200, 300], [0, 120, 220, 0, 320]),
     (1, [6, -1, 6, 6, -1], [101, 101, 201, 301, 301], [121, 0, 221, 321, 0])],
)  # fmt: skip
def test_each_rank_has_the_tasks_of_all(rank: int, workers: list[int], submitted: list[int], ended: list[int]) -> None:
    traces = pruned()
    trace = with_other_ranks(traces[rank], cast(Any, Ranks(rank, traces)))
    assert trace.tasks["id"].tolist() == [0, 1, 2, 3, 4]
    assert trace.tasks["rank"].tolist() == [1, 0, 1, 1, 0]
    assert trace.tasks["worker"].tolist() == workers
    assert trace.tasks["submit_ns"].tolist() == submitted
    assert trace.tasks["end_ns"].tolist() == ended
    assert [[access.handle.id for access in task.accesses] for task in trace] == [[4, 5], [1], [2, 3], [6], []]


def test_traces_that_do_not_fit_are_refused() -> None:
    first, second = pruned()
    lost = recorded(1, [0, 2], [0, 1], [[4, 5], [2, 3]])
    with pytest.raises(RuntimeFailureError, match="no rank has recorded task 3, expected all below 4"):
        with_other_ranks(first, cast(Any, Ranks(0, [first, lost])))
    other = recorded(1, [0, 2, 3, 4], [0, 1, 0, 0], [[4, 5], [2, 3], [6], []])
    with pytest.raises(RuntimeFailureError, match="recorded different tasks as task 4"):
        with_other_ranks(first, cast(Any, Ranks(0, [first, other])))
    assert len(with_other_ranks(second, cast(Any, Ranks(1, [first, second])))) == 5
