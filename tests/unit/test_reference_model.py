"""What is found of the workers in traces that are made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from starpullm.checks.expectations import Expectations
from starpullm.checks.scenario.reference_model import check_workers
from starpullm.trace import Trace

from .plain_trainer import runtime
from .test_dependencies import make_trace

Change = Callable[[Trace], None]


def set_field(name: str, task: int, value: int) -> Change:
    def change(trace: Trace) -> None:
        trace.tasks[name][task] = value

    return change


def wrong_workers(change: Change) -> list[str]:
    """Six tasks on two workers in turn; each takes as long as two starts are apart, so that a worker has no pause."""
    trace = make_trace([[]] * 6, starts=[10, 20, 30, 40, 50, 60], ends=[30, 40, 50, 60, 70, 80])
    trace.tasks["worker"] = [0, 1] * 3
    trace.tasks["submit_ns"] = trace.tasks["start_ns"]
    change(trace)
    expect = Expectations()
    check_workers(expect, runtime(partition=TWO), trace)
    endings = [(found.sentence.partition(":")[0], found.sentence.rpartition("found ")[2]) for found in expect.wrong]
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
