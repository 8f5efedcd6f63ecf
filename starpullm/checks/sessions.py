"""What a trainer reports of its run: the trace, losses, what instruments have done, who has which parameter."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from starpullm.checks.cases import Case, find_record
from starpullm.checks.check import Check, Needs, check
from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.checks.statements import Statements
from starpullm.checks.training import own_batch, traced_trainer
from starpullm.files.model import num_elements, parameter_shapes
from starpullm.runtime import Runtime
from starpullm.trace import AccessMode, Trace

_BLOCK_OF_TASKS = 1024
"""Tasks that the recorder stores in one block."""


@check
class LongTraces(Check):
    """Record several blocks of tasks, twice: every step has the tasks and accesses of the one before it."""

    family, unit = "interface", "statements"
    claim = "a trace of many steps has every task of every step, with its accesses and times"
    fault = "a trace lacks tasks, or has others than the steps before"
    cannot_see = "a task that is missing in every step"
    needs = Needs(one_record=True)

    def run(self, place: Place, case: Case) -> Result:
        """Submit steps until two blocks are full, clear the trace, and do so again."""
        statements = Statements()
        sub_batches = find_record(case.record).batch_size // place.runtime.ranks
        with traced_trainer(place, case._replace(sub_batches=sub_batches)) as trainer:
            for first in (0, 1):
                steps = 1
                trainer.submit(*own_batch(trainer, case.seed, 0))
                in_a_step = len(trainer.trace())
                while steps * in_a_step <= 2 * _BLOCK_OF_TASKS:
                    trainer.submit(*own_batch(trainer, case.seed, steps))
                    steps += 1
                trace = trainer.trace()
                check_steps(statements, trace, first * steps, steps, in_a_step)
                trainer.clear_trace()
                statements.equal("tasks after clearing", 0, len(trainer.trace()))
            check_workers(statements, place.runtime, trace)
        return self.result(compared=statements.compared, findings=statements.wrong)


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


def check_workers(statements: Statements, runtime: Runtime, trace: Trace) -> None:
    """State that this rank's tasks ran one after the other on each worker, after their submission."""
    tasks = trace.tasks[trace.tasks["worker"] >= 0]
    expected = set(range(runtime.partition.workers))
    statements.equal("workers that there are not", set(), set(tasks["worker"].tolist()) - expected)
    statements.equal("a worker has run tasks", True, len(tasks) > 0)
    statements.equal("ranks whose tasks have run here", {runtime.rank}, set(tasks["rank"].tolist()))
    in_order = (tasks["submit_ns"] <= tasks["start_ns"]) & (tasks["start_ns"] <= tasks["end_ns"])
    statements.equal("tasks that ended before they began", 0, int(np.sum(~in_order)))
    for worker in expected:
        own = np.sort(tasks[tasks["worker"] == worker], order="start_ns")
        overlapping = int(np.sum(own["start_ns"][1:] < own["end_ns"][:-1]))
        statements.equal(f"tasks of worker {worker} that overlap", 0, overlapping)


@check
class OwnersOfParameters(Check):
    """Count who updates what: each parameter once, and no tensor with another owner would make shares more even."""

    family, unit = "interface", "statements"
    claim = "each parameter has one owner, which updates it, and the shares are as even as whole tensors allow"
    fault = "parameters have none or several owners, or the shares are uneven"
    cannot_see = "an owner that is slower than the others"
    needs = Needs(ranks=(2, None), one_record=True)

    def run(self, place: Place, case: Case) -> Result:
        """Look at the updates of one step."""
        statements = Statements()
        with traced_trainer(place, case) as trainer:
            trainer.submit(*own_batch(trainer, case.seed, 0))
            trace = trainer.trace()
        shares: dict[int, list[int]] = {rank: [] for rank in range(place.runtime.ranks)}
        gradients: Counter[str] = Counter()  # bytes
        parameters: dict[str, int] = {}
        for task in trace:
            if task.operation == "adamw_update":
                (updated,) = (a for a in task.accesses if re.match("params/", a.handle.name))
                (gradient,) = (a.handle for a in task.accesses if re.match("grads/", a.handle.name))
                name = updated.handle.name
                gradients[name] += gradient.bytes
                parameters[name] = updated.handle.bytes
                shares[task.rank].append(gradient.bytes)
                statements.equal(f"{name} is updated", True, updated.mode is AccessMode.READ_WRITE)
        statements.equal("bytes of the gradients that update a parameter", parameters, dict(gradients))
        shapes = parameter_shapes(find_record(case.record).model)
        total = 4 * sum(num_elements(shape) for shape in shapes.values())
        statements.equal("bytes that are updated", total, sum(map(sum, shares.values())))
        statements.equal("ranks that own nothing", [], [rank for rank, share in shares.items() if not share])
        least = min(map(sum, shares.values()))
        for rank, share in shares.items():
            even = not share or sum(share) - min(share) <= least
            statements.equal(f"rank {rank} could give a tensor away", False, not even)
        return self.result(compared=statements.compared, findings=statements.wrong)
