"""The order in which one worker takes ready tasks, compared with their priorities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.dependencies.runtime_graph import run_held_steps
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import traced_trainer
from starpullm.graph.required_order import required_edges
from starpullm.options import RuntimeConfiguration
from starpullm.trace import Trace


@check
class Priorities(Check):
    """Compare each task's priority with those of the tasks that were ready when one worker took it.

    All tasks of two steps are submitted before one runs, so what is ready follows from the order in which they end.
    """

    family, unit = "dependencies", "choices"
    claim = "of the ready tasks, one worker takes one of the highest priority"
    fault = "a task was taken before a ready one of higher priority"
    cannot_see = "other schedulers than prio and lws; how several workers share tasks"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1))

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the first record, with its largest number of sub-batches."""
        for record in options.records[:1]:
            yield Case(record, sub_batches=max(options.sub_batches(record)), seed=options.seed)

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[RuntimeConfiguration | None]:
        """Return one for each scheduler with priorities."""
        return [RuntimeConfiguration("1x1", scheduler) for scheduler in ("lws", "prio")]

    def run(self, context: CheckContext, case: Case) -> Result:
        """Run held steps."""
        with traced_trainer(context, case) as trainer:
            run_held_steps(trainer, case.seed)
            return self.judge(trainer.trace())

    def judge(self, trace: Trace) -> Result:
        """Follow the tasks in the order in which they ran; a choice is a task beside which others were ready."""
        predecessors = required_edges(trace.tasks, trace.accesses).predecessors
        priorities = trace.tasks["priority"].tolist()
        left, followers = list(map(len, predecessors)), [list[int]() for _ in predecessors]
        for task, before in enumerate(predecessors):
            for earlier in before:
                followers[earlier].append(task)
        ready = Counter(priority for priority, waits in zip(priorities, left, strict=True) if not waits)
        findings, choices = [], 0
        for task in np.argsort(trace.tasks["start_ns"]).tolist():
            choices += ready.total() > 1
            highest = max(priority for priority, count in ready.items() if count)
            if priorities[task] < highest:
                findings.append(Finding(f"{trace[task]}: found priority {priorities[task]}, expected {highest}"))
            ready[priorities[task]] -= 1
            for later in followers[task]:
                left[later] -= 1
                ready[priorities[later]] += not left[later]
        return self.result(compared=choices, findings=findings, priorities=sorted(ready))
