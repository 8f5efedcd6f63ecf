"""What a report gets of a recorded run: tasks with times from the first start on, and the longest path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK
from starpullm.checks.recorded_run import of_all_ranks, recorded_run
from starpullm.processes.clocks import ClockReading
from starpullm.trace import Trace

from .test_dependencies import RW, R, W, make_trace


def two_steps(starts: Sequence[int] | None = None) -> Trace:
    """A chain of two tasks in each step, beside a task that nothing waits for."""
    return make_trace(
        [[(0, W)], [(0, R), (1, W)], [(2, W)], [(0, RW)], [(0, R), (1, RW)]], starts=starts, steps=[0, 0, 0, 1, 1]
    )


def test_a_recording_has_the_tasks_and_the_longest_path() -> None:
    trace = two_steps(starts=[1000, 1010, 1005, 1020, 1035])
    found = recorded_run(trace, name="tiny", configuration="2x1 lws")
    assert json.loads(json.dumps(found)) == found
    assert (found["name"], found["configuration"], found["operations"]) == ("tiny", "2x1 lws", ["work"])
    tasks = found["tasks"]
    assert set(tasks) == {"operation", "step", "sub_batch", "layer", "rank", "worker", "start", "end"}
    assert (tasks["start"], tasks["end"]) == ([0, 10, 5, 20, 35], [10, 20, 15, 30, 45])
    assert (tasks["step"], tasks["layer"]) == ([0, 0, 0, 1, 1], [-1] * 5)
    assert found["critical_path"] == [0, 1, 3, 4]


def test_tasks_that_did_not_run_have_no_time() -> None:
    trace = two_steps(starts=[1000, 1010, 1005, 7, 1035])
    trace.tasks["worker"][3] = -1
    found = recorded_run(trace, name="tiny", configuration="")
    assert (found["tasks"]["start"], found["tasks"]["end"]) == ([0, 10, 5, 0, 35], [10, 20, 15, 0, 45])


def test_no_task_is_an_empty_recording() -> None:
    for trace in (make_trace([]), make_trace([[(0, W)]])):
        trace.tasks["worker"] = -1
        found = recorded_run(trace, name="", configuration="")
        assert found["tasks"]["start"] == [0] * len(trace)
        assert found["critical_path"] == list(range(len(trace)))


def test_times_of_ranks_are_on_one_clock() -> None:
    """The clock of rank 1 is 1000 ns ahead; each rank knows the times of its own tasks only."""
    tables = []
    for rank in range(2):
        tasks = np.zeros(2, TRACE_TASK)
        tasks["rank"] = [0, 1]
        tasks["worker"] = [5 if rank == 0 else -1, 7 if rank == 1 else -1]
        tasks["start_ns"][rank], tasks["end_ns"][rank] = 2000 + 1000 * rank, 2500 + 1000 * rank
        tables.append(tasks)
    aligned = [tables[0].copy(), tables[1].copy()]
    for name in ("start_ns", "end_ns"):
        aligned[1][name][1] -= 1000

    class Ranks:
        """What of_all_ranks asks of a communicator."""

        def allgather(self, own: NDArray[np.void]) -> list[NDArray[np.void]]:
            assert (own == aligned[1]).all()
            return aligned

    reading = ClockReading(at_ns=0, ahead_ns=1000)
    trace = Trace(tables[1], np.zeros(0, TRACE_ACCESS), ("work",), ())
    merged = of_all_ranks(trace, cast(Any, Ranks()), reading, reading).tasks
    assert merged["worker"].tolist() == [5, 7]
    assert (merged["start_ns"].tolist(), merged["end_ns"].tolist()) == ([2000, 2000], [2500, 2500])
    assert merged["submit_ns"].tolist() == [0, 0]  # unknown
