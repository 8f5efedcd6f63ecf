"""What a trainer reports of its run: the trace, losses, what instruments have done, who has which parameter."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import numpy as np

from starpullm.checks.cases import find_record
from starpullm.checks.place import Place
from starpullm.checks.result import CheckResult
from starpullm.checks.statements import Statements
from starpullm.checks.training import new_trainer, own_batch
from starpullm.files.model import num_elements, parameter_shapes
from starpullm.trace import AccessMode, Trace

_BLOCK_OF_TASKS = 1024
"""Tasks that the recorder stores in one block."""


def long_traces(place: Place, *, record: str, seed: int) -> CheckResult:
    """Record several blocks of tasks, twice: every step has the tasks and accesses of the one before it."""
    statements = Statements("long traces")
    golden = find_record(record)
    sub_batches = golden.batch_size // place.runtime.ranks
    with new_trainer(place, golden, sub_batches=sub_batches, keep_activations=False, trace=True) as trainer:
        for first in (0, 1):
            steps = 1
            trainer.submit(*own_batch(trainer, seed, 0))
            in_a_step = len(trainer.trace())
            while steps * in_a_step <= 2 * _BLOCK_OF_TASKS:
                trainer.submit(*own_batch(trainer, seed, steps))
                steps += 1
            trace = trainer.trace()
            check_steps(statements, trace, first * steps, steps, in_a_step)
            trainer.clear_trace()
            statements.equal("tasks after clearing", 0, len(trainer.trace()))
        check_workers(statements, place, trace)
    return statements.result()


def check_steps(statements: Statements, trace: Trace, first: int, steps: int, in_a_step: int) -> None:
    """State that a trace has so many steps, from the number ``first`` on, whose tasks and accesses are alike."""
    statements.equal("tasks", steps * in_a_step, len(trace))
    tasks = trace.tasks
    statements.equal("numbers of tasks", True, np.array_equal(tasks["id"], np.arange(len(tasks))))
    ends = np.cumsum(tasks["num_accesses"])
    statements.equal("first accesses", True, np.array_equal(tasks["first_access"][1:], ends[:-1]))
    statements.equal("accesses", int(ends[-1]), len(trace.accesses))
    names = [re.sub(r"@\d+", "@", handle.name) for handle in trace.handles]  # without the slot, which changes
    contents = [
        [
            (
                task.operation,
                task.sub_batch,
                task.layer,
                task.rank,
                tuple((names[access.handle.id], access.mode) for access in task.accesses),
            )
            for task in map(trace.__getitem__, range(begin, begin + in_a_step))
        ]
        for begin in range(0, len(trace), in_a_step)
    ]
    for number, of_step in enumerate(contents):
        statements.equal(f"tasks and accesses of step {number} are those of step 0", True, of_step == contents[0])
        own = tasks["step"][number * in_a_step : (number + 1) * in_a_step]
        statements.equal(f"step of the tasks of step {number}", {first + number}, set(own.tolist()))


def check_workers(statements: Statements, place: Place, trace: Trace) -> None:
    """State that this rank's tasks ran one after the other on each worker, after their submission."""
    tasks = trace.tasks[trace.tasks["worker"] >= 0]
    expected = set(range(place.runtime.partition.workers))
    statements.equal("workers that there are not", set(), set(tasks["worker"].tolist()) - expected)
    statements.equal("a worker has run tasks", True, len(tasks) > 0)
    statements.equal("ranks whose tasks have run here", {place.runtime.rank}, set(tasks["rank"].tolist()))
    in_order = (tasks["submit_ns"] <= tasks["start_ns"]) & (tasks["start_ns"] <= tasks["end_ns"])
    statements.equal("tasks that ended before they began", 0, int(np.sum(~in_order)))
    for worker in expected:
        own = np.sort(tasks[tasks["worker"] == worker], order="start_ns")
        overlapping = int(np.sum(own["start_ns"][1:] < own["end_ns"][:-1]))
        statements.equal(f"tasks of worker {worker} that overlap", 0, overlapping)


def side_by_side(place: Place, *, record: str, seed: int) -> CheckResult:
    """Compare two trainers on one runtime, whose steps are submitted in turn, with one that is alone."""
    statements = Statements("trainers side by side")
    steps = 4
    golden = find_record(record)
    make = partial(new_trainer, place, golden, keep_activations=False)
    with make() as alone:
        expected = [alone.step(*own_batch(alone, seed, number)) for number in range(steps)]
        ends = {name: alone.tensor("params", name) for name in alone.tensor_names("params")}
    with make() as first, make() as second:
        losses = [[of.submit(*own_batch(of, seed, number)) for of in (first, second)] for number in range(steps)]
        first.wait()
        second.wait()
        for number, pair in enumerate(losses):
            for which, loss in enumerate(pair):
                statements.equal(f"loss {number} of trainer {which} is ready", True, loss.ready)
                statements.same_bits(
                    f"loss {number} of trainer {which}", _array(expected[number]), _array(loss.result())
                )
        for name, values in ends.items():
            for which, trainer in enumerate((first, second)):
                statements.same_bits(f"{name} of trainer {which}", values, trainer.tensor("params", name))
        kept = [of.submit(*own_batch(of, seed, steps)) for of in (first, second)]
    statements.same_bits("losses of closed trainers", _array(kept[0].result()), _array(kept[1].result()))
    return statements.result()


def _array(value: np.float32) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array([value], np.float32)


def owners(place: Place, *, record: str, seed: int) -> CheckResult:
    """Count who updates what: each parameter once, and no tensor with another owner would make shares more even."""
    statements = Statements("owners of parameters")
    ranks = place.runtime.ranks
    golden = find_record(record)
    with new_trainer(place, golden, keep_activations=False, trace=True) as trainer:
        trainer.submit(*own_batch(trainer, seed, 0))
        trace = trainer.trace()
    shares: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    updates: Counter[str] = Counter()
    for task in trace:
        if task.operation == "adamw_update":
            (name,) = (a.handle.name for a in task.accesses if re.match("params/", a.handle.name))
            updates[name] += 1
            shares[task.rank].append(sum(a.handle.bytes for a in task.accesses if a.handle.name == name))
            statements.equal(f"{name} is updated", True, any(a.mode is AccessMode.READ_WRITE for a in task.accesses))
    statements.equal("updates of one parameter", {1}, set(updates.values()))
    total = 4 * sum(num_elements(shape) for shape in parameter_shapes(golden.model).values())
    statements.equal("bytes that are updated", total, sum(map(sum, shares.values())))
    statements.equal("ranks that own nothing", [], [rank for rank, share in shares.items() if not share])
    least = min(map(sum, shares.values()))
    for rank, share in shares.items():
        even = not share or sum(share) - min(share) <= least
        statements.equal(f"rank {rank} could give a tensor away", False, not even)
    return statements.result()
