"""The order in which one worker takes ready tasks, compared with their priorities."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Compare each task's priority with those of the tasks that were ready when one worker took it."""

    family, unit = "dependencies", "choices"
    claim = "of the ready tasks, one worker takes one of the highest priority"
    fault = "a task was taken before a ready one of higher priority"
    cannot_see = "other schedulers than prio and lws; how several workers share tasks"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1), one_record=True)

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[RuntimeConfiguration | None]:
        """Return one for each scheduler with priorities."""
        return [RuntimeConfiguration("1x1", scheduler) for scheduler in ("lws", "prio")]

    def run(self, context: CheckContext, case: Case) -> Result:
        """Run steps whose tasks are all submitted before one runs: what is ready follows from their order."""
        with traced_trainer(context, case) as trainer:
            run_held_steps(trainer, case.seed)
            return self.judge(trainer.trace())

    def judge(self, trace: Trace) -> Result:
        """Follow the tasks in the order in which they ran; a choice is a task beside which others were ready."""
        order = np.argsort(trace.tasks["start_ns"]).tolist()
        place, priorities = np.argsort(order).tolist(), trace.tasks["priority"].tolist()
        predecessors = required_edges(trace.tasks, trace.accesses).predecessors
        last = [max((place[before] for before in of_task), default=-1) for of_task in predecessors]
        findings, choices = [], 0
        for now, task in enumerate(order):
            ready = [priorities[other] for other in order[now:] if last[other] < now]
            choices += len(ready) > 1
            if priorities[task] < max(ready, default=priorities[task]):
                findings.append(Finding(f"{trace[task]}: found priority {priorities[task]}, expected {max(ready)}"))
        return self.result(compared=choices, findings=findings)
