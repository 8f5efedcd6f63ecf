"""What a report gets of a recorded run: tasks with times from the first start on, and the longest path."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starpullm.checks.recorded_run import recorded_run
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
