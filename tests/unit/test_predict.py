"""The model of a step on paper: schedules, messages, what a step waits for, and refusals, on graphs made by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.graph.on_paper import FREE, SCHEDULERS, Network, PaperSchedule, run
from starpullm.graph.waits import recorded_waits, waits_of
from starpullm.graph.work import MESSAGE, Work, work_of
from starpullm.predict.costs import MatmulSpeed, Measured
from starpullm.speed.workload import Workload
from starpullm.trace import Trace

from .traces import trace_of

R, W, RW = 1, 2, 3
SLOW = Network(5e-9, 1e9)
"""5 ns, and a byte takes 1 ns."""


class Task(NamedTuple):
    duration: int
    accesses: Sequence[tuple[str, int]]
    rank: int = 0
    priority: int = 0
    operation: str = "work"


def trace_of_tasks(tasks: Sequence[Task], sizes: dict[str, int]) -> Trace:
    operations = ("work", "transfer")
    columns = {name: [getattr(task, name) for task in tasks] for name in ("rank", "priority")}
    flow = [task.accesses for task in tasks]
    return trace_of(flow, sizes, operations, operation=[operations.index(task.operation) for task in tasks], **columns)


def scheduled(
    tasks: Sequence[Task],
    workers: int = 1,
    scheduler: str = "prio",
    network: Network = FREE,
    owners: dict[str, int] | None = None,
    ranks: int = 1,
) -> tuple[Trace, Work, PaperSchedule]:
    """Return what becomes of tasks; a handle has 10 bytes, and is rank 0's unless ``owners`` says more."""
    names = sorted({name for task in tasks for name, _ in task.accesses})
    trace = trace_of_tasks(tasks, dict.fromkeys(names, 10))
    work = work_of(trace, np.array([(owners or {}).get(name, 0) for name in names], np.int64), ranks)
    is_task = work.source < 0
    of_nodes = [
        np.where(is_task, np.array(values)[work.task], 0)
        for values in ([task.duration for task in tasks], [task.priority for task in tasks])
    ]
    return trace, work, run(work, *of_nodes, workers=workers, scheduler=scheduler, network=network)


def starts(work: Work, schedule: PaperSchedule) -> list[int]:
    """Return when each task starts."""
    return [int(start) for start in schedule.start[work.source < 0]]


def test_a_chain_and_independent_tasks() -> None:
    """A sum passes through three tasks, while the second worker does the rest."""
    tasks = [Task(10, [("sum", RW)], priority=1) for _ in range(3)] + [Task(7, [(f"x{i}", W)]) for i in range(3)]
    _, work, schedule = scheduled(tasks, workers=2)
    assert starts(work, schedule) == [0, 10, 20, 0, 7, 14]
    assert schedule.makespan == 30


@pytest.mark.parametrize(("scheduler", "expected"), [("prio", [0, 3, 4, 1]), ("eager", [0, 1, 2, 3])])
def test_priorities(scheduler: str, expected: list[int]) -> None:
    """The tasks after the first; with ``eager`` in the order in which they became ready."""
    tasks = [Task(1, [("x", W)]), Task(1, [("x", R)]), Task(1, [("x", R)], priority=-1)]
    tasks.append(Task(2, [("x", R)], priority=1))
    assert starts(*scheduled(tasks, scheduler=scheduler)[1:]) == expected


@pytest.mark.parametrize(("scheduler", "expected"), [("lws", [5, 4]), ("prio", [4, 5])])
def test_own_tasks_first(scheduler: str, expected: list[int]) -> None:
    """With ``lws`` the worker that has run b takes what it has made ready, though a's reader has waited for longer."""
    tasks = [Task(3, [("a", W)]), Task(4, [("b", W)]), Task(6, [("x", W)]), Task(1, [("a", R)]), Task(1, [("b", R)])]
    assert starts(*scheduled(tasks, workers=2, scheduler=scheduler)[1:]) == [0, 0, 3, *expected]


def test_a_value_is_sent_once_until_it_changes() -> None:
    """Rank 1 reads a value of rank 0 twice, and again after it has changed."""
    tasks = [Task(1, [("x", R)], rank=1), Task(1, [("x", R)], rank=1), Task(1, [("x", W)]), Task(1, [("x", R)], rank=1)]
    _, work, schedule = scheduled(tasks, network=SLOW, ranks=2)
    assert work.task.tolist() == [MESSAGE, 0, 1, 2, MESSAGE, 3]
    # The new value is written while the first message may still be read from: after it. It arrives 15 ns later.
    assert schedule.start.tolist() == [0, 15, 16, 15, 17, 32]


def test_what_is_written_elsewhere_goes_home() -> None:
    """Rank 1 adds to a value of rank 0, which rank 0 then reads."""
    tasks = [Task(2, [("x", RW)], rank=1), Task(1, [("x", R)])]
    _, work, schedule = scheduled(tasks, network=SLOW, ranks=2)
    assert list(zip(work.source.tolist(), work.rank.tolist(), strict=True)) == [(0, 1), (-1, 1), (1, 0), (-1, 0)]
    assert schedule.start.tolist() == [0, 15, 17, 32]


def test_transfers_are_messages() -> None:
    """A sum goes on in the other rank's buffer."""
    transfer = Task(0, [("g1", W), ("g0", R)], rank=1, operation="transfer")
    tasks = [Task(4, [("g0", W)]), transfer, Task(1, [("g1", RW)], rank=1)]
    _, work, schedule = scheduled(tasks, network=SLOW, owners={"g1": 1}, ranks=2)
    assert work.task.tolist() == [0, 1, 2]
    assert schedule.start.tolist() == [0, 4, 19]
    assert schedule.worker.tolist() == [0, -1, 0]


def test_what_a_step_waits_for() -> None:
    """A chain of two sums, whose second task also waits for a worker, then for a message."""
    tasks = [Task(30, [("grads/wte", RW)]), Task(10, [("y#0", W)], priority=1), Task(10, [("grads/wte", RW)])]
    tasks.append(Task(5, [("grads/wte", R)], rank=1))
    trace, work, schedule = scheduled(tasks, network=SLOW, ranks=2)
    # y 0-10, the sum 10-40-50 (its first task had no worker), the message 50-65, its reader 65-70
    assert schedule.makespan == 70
    waits = waits_of(trace, work, schedule)
    assert waits == {"busy workers": 40 / 70, "grads/wte": 15 / 70, "messages": 15 / 70}


def test_what_a_recorded_step_has_waited_for() -> None:
    """The same, of the times of the schedule: a sum holds two workers, whose second one also does something else."""
    tasks = [Task(10, [("grads/wte", RW)]), Task(4, [("y", W)]), Task(10, [("grads/wte", RW)]), Task(25, [("y", R)])]
    trace, work, schedule = scheduled([*tasks, Task(3, [("grads/wte", R)])], workers=2)
    for column, values in (("start_ns", schedule.start), ("end_ns", schedule.end), ("worker", schedule.worker)):
        trace.tasks[column] = values + (7 if column != "worker" else 0)
    assert recorded_waits(trace) == waits_of(trace, work, schedule) == {"y": 25 / 29, "busy workers": 4 / 29}
    trace.tasks["end_ns"][-1] += 10
    assert recorded_waits(trace) == {"grads/wte": 23 / 33, "busy workers": 10 / 33}


TASKS = st.lists(
    st.builds(
        Task,
        st.integers(0, 9),
        st.dictionaries(st.sampled_from("abcd"), st.sampled_from((R, W, RW)), min_size=1).map(
            lambda accesses: list(accesses.items())
        ),
        st.integers(0, 2),
        st.integers(-1, 1),
        st.just("work"),
    ),
    min_size=1,
    max_size=30,
)


@given(TASKS, st.integers(1, 3), st.sampled_from(SCHEDULERS))
def test_rules_of_every_schedule(tasks: list[Task], workers: int, scheduler: str) -> None:
    """Nothing starts too early, no worker or link does two things at once, and no worker is idle while a task waits."""
    owners = {"b": 1, "c": 2}
    _, work, schedule = scheduled(tasks, workers, scheduler, SLOW, owners, ranks=3)
    before, after = work.order.before, work.order.after
    assert (schedule.start[after] >= schedule.end[before]).all()
    busy: defaultdict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    for node, (start, end) in enumerate(zip(schedule.start.tolist(), schedule.end.tolist(), strict=True)):
        source, rank, size = int(work.source[node]), int(work.rank[node]), int(work.bytes[node])
        if source < 0:
            assert end - start == tasks[int(work.task[node])].duration
            busy["worker", rank, int(schedule.worker[node])].append((start, end))
        else:
            assert end - start == size + 5
            busy["out", source, 0].append((start, start + size))
            busy["in", rank, 0].append((start, start + size))
    for spans in busy.values():
        for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert end <= start
    for node in np.flatnonzero((work.source < 0) & (schedule.start > schedule.ready)).tolist():
        others = (work.source < 0) & (work.rank == work.rank[node])
        for time in range(schedule.ready[node], schedule.start[node]):
            assert int((others & (schedule.start <= time) & (time < schedule.end)).sum()) == workers
    assert schedule.makespan == schedule.end.max()


@pytest.mark.parametrize(
    "text", ["", "10us", "10us,", "10,10GB/s", "-1us,1GB/s", "10us,0GB/s", "10us;1GB/s", "1us,1GB"]
)
def test_no_network(text: str) -> None:
    sentence = f'network: found "{text}", expected a latency and a bandwidth above 0, for example 10us,10GB/s'
    with pytest.raises(InvalidArgumentError) as caught:
        Network.parse(text)
    assert str(caught.value) == sentence


def test_a_network() -> None:
    assert Network.parse("1.5us,100MB/s") == pytest.approx((1.5e-6, 1e8))
    assert str(Network.parse("10us,10GB/s")) == "10 us, 10 GB/s"


def test_an_unknown_scheduler() -> None:
    with pytest.raises(InvalidArgumentError, match=r'^scheduler: found "dmda", expected one of lws'):
        scheduled([Task(1, [("x", W)])], scheduler="dmda")


@pytest.mark.parametrize("gflops", [0.0, -1.0, float("inf"), float("nan")])
def test_no_speed(gflops: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^gflops: found .*, expected a finite number above 0$"):
        MatmulSpeed(gflops)


def test_durations_by_kind() -> None:
    """A kind is an operation and its bytes; a worker of two threads takes half as long as one of one.

    A task on a tile, such as y's of 2 of 8 bytes, takes its share.
    """
    tasks = [Task(0, [("x", R), ("y%0", W)]), Task(0, [("x", R), ("y%1", W)]), Task(0, [("z", R)])]
    trace = trace_of_tasks(tasks, {"x": 4, "y%0": 2, "y%1": 6, "z": 8})
    config = ModelConfig(1, 1, 1, 1, 1, 1)
    sizes: dict[str, Any] = {
        "model": "m",
        "batch_size": 1,
        "seq_len": 1,
        "sub_batches": 1,
        "ranks": 1,
        "iterations": 1,
        "warm_up": 0,
    }
    workload = Workload(partition="1x2", scheduler="lws", reduction="tree", **sizes)
    costs = Measured("here", {("work", (4, 8)): 6.0, ("work", (8,)): 10.0}, 1, 0.0)
    assert costs.of_tasks(trace, config, workload).tolist() == [0.75, 2.25, 5.0]
    unknown = Measured("here", {("work", (4, 8)): 6.0}, 1, 0.0)
    with pytest.raises(InvalidArgumentError) as caught:
        unknown.of_tasks(trace, config, workload)
    assert str(caught.value) == (
        "durations here: found no work with accesses of 8 bytes, expected the same model, sub-batches and reduction, "
        "and gradients in tiles or not"
    )
