"""Tests of the merge of traces: the rank that ran a task tells its times, and all times are those of one clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK
from starpullm.errors import RuntimeFailureError
from starpullm.processes.clocks import ClockReading
from starpullm.trace import HandleInfo, Trace
from starpullm.traces.merge import on_one_clock

AHEAD = 1000
"""By which the clock of rank 1 is ahead of that of rank 0."""


def traces_of_ranks() -> list[Trace]:
    """A task of each rank, and a message from rank 0 to 1, which both have recorded; the end at rank 1 is later."""
    found = []
    for rank in range(2):
        tasks = np.zeros(3, TRACE_TASK)
        tasks["operation"] = [0, 1, 0]
        tasks["rank"] = [0, 0, 1]
        tasks["worker"] = -1
        own = 2 * rank
        tasks["worker"][own] = 5 + rank
        shift = AHEAD * rank
        tasks["start_ns"][own], tasks["end_ns"][own] = 2000 + 700 * rank + shift, 2500 + 700 * rank + shift
        tasks["end_ns"][1] = 2550 + 100 * rank + shift
        found.append(Trace(tasks, np.zeros(0, TRACE_ACCESS), ("work", "transfer"), (HandleInfo(0, "x", 4),)))
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


@pytest.mark.parametrize("handles", [(), (HandleInfo(0, "y", 4),)])
def test_ranks_with_other_tasks_are_refused(handles: tuple[HandleInfo, ...]) -> None:
    first, second = traces_of_ranks()
    with pytest.raises(RuntimeFailureError, match=f"rank 1 has 3 tasks on {len(handles)} handles, expected those of"):
        merged([first, replace(second, handles=handles)])
