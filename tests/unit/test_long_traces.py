"""What is found in traces that are longer than a block of the recorder, with traces that are made by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from starpullm.checks.sessions import check_steps, check_workers
from starpullm.checks.statements import Statements
from starpullm.trace import HandleInfo, Trace

from .plain_trainer import runtime
from .test_dependencies import R, W, make_trace

Change = Callable[[Trace], None]


def three_steps() -> Trace:
    """Two tasks in each step, from step 3 on, which begin to use another slot each time."""
    flow = [accesses for step in range(3) for accesses in ([(0, R), (1 + step % 2, W)], [(1 + step % 2, R), (3, W)])]
    trace = make_trace(flow, steps=[3, 3, 4, 4, 5, 5])
    handles = ("params/wte", "mean_loss@0", "mean_loss@1", "grads/wte")
    return Trace(
        trace.tasks, trace.accesses, trace.operations, tuple(HandleInfo(n, name, 4) for n, name in enumerate(handles))
    )


def wrong_in_steps(trace: Trace, steps: int = 3, first: int = 3) -> list[str]:
    statements = Statements()
    check_steps(statements, trace, first, steps, 2)
    assert statements.compared == 4 + len(trace)  # four of all, two of each step
    return [finding.sentence.partition(":")[0] for finding in statements.wrong]


def set_field(name: str, task: int, value: int) -> Change:
    def change(trace: Trace) -> None:
        trace.tasks[name][task] = value

    return change


def set_access(name: str, access: int, value: int) -> Change:
    def change(trace: Trace) -> None:
        trace.accesses[name][access] = value

    return change


def test_like_steps_are_right() -> None:
    assert wrong_in_steps(three_steps()) == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (set_field("id", 4, 9), ["numbers of tasks"]),
        (set_field("step", 2, 5), ["step of the tasks of step 1"]),
        (set_field("layer", 5, 0), ["tasks and accesses of step 2 are those of step 0"]),
        (set_field("sub_batch", 3, 1), ["tasks and accesses of step 1 are those of step 0"]),
        (set_field("rank", 3, 1), ["tasks and accesses of step 1 are those of step 0"]),
        (set_access("handle", 11, 0), ["tasks and accesses of step 2 are those of step 0"]),
        (set_access("mode", 4, 2), ["tasks and accesses of step 1 are those of step 0"]),
        (set_access("handle", 5, 1), []),  # only another slot
    ],
)
def test_a_step_that_is_not_like_the_first_is_wrong(change: Change, wrong: list[str]) -> None:
    trace = three_steps()
    change(trace)
    assert wrong_in_steps(trace) == wrong


def test_lost_tasks_and_accesses_are_wrong() -> None:
    trace = three_steps()
    assert wrong_in_steps(trace, steps=4) == ["tasks"]
    assert wrong_in_steps(trace, first=4) == [f"step of the tasks of step {number}" for number in range(3)]
    more = Trace(trace.tasks, np.append(trace.accesses, trace.accesses[:1]), trace.operations, trace.handles)
    assert wrong_in_steps(more) == ["accesses"]
    trace.tasks["first_access"][3] += 1
    assert "first accesses" in wrong_in_steps(trace)


# ---- Workers ----


def wrong_workers(change: Change) -> list[str]:
    """Six tasks on two workers in turn; each takes as long as two starts are apart, so that a worker has no pause."""
    trace = make_trace([[]] * 6, starts=[10, 20, 30, 40, 50, 60], ends=[30, 40, 50, 60, 70, 80])
    trace.tasks["worker"] = [0, 1] * 3
    trace.tasks["submit_ns"] = trace.tasks["start_ns"]
    change(trace)
    statements = Statements()
    check_workers(statements, runtime(partition=TWO), trace)
    endings = [(found.sentence.partition(":")[0], found.sentence.rpartition("found ")[2]) for found in statements.wrong]
    return [f"{what}: {found}" for what, found in endings]


class _Two:
    workers = 2


TWO = _Two()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda trace: None, []),
        (set_field("worker", 3, -1), []),  # another rank's
        (set_field("worker", 3, 2), ["workers that there are not: {2}"]),
        (set_field("rank", 3, 1), ["ranks whose tasks have run here: {0, 1}"]),
        (set_field("submit_ns", 0, 11), ["tasks that ended before they began: 1"]),
        (set_field("end_ns", 4, 49), ["tasks that ended before they began: 1"]),
        (set_field("end_ns", 0, 31), ["tasks of worker 0 that overlap: 1"]),
        (set_field("end_ns", 1, 41), ["tasks of worker 1 that overlap: 1"]),
        (
            lambda trace: trace.tasks["worker"].fill(-1),
            ["a worker has run tasks: False", "ranks whose tasks have run here: set()"],
        ),
    ],
)
def test_tasks_of_a_worker_run_one_after_the_other(change: Change, wrong: list[str]) -> None:
    assert wrong_workers(change) == wrong
