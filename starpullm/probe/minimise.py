"""The two tasks whose order makes a difference: the reference schedule again, in which tasks wait for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from starpullm.probe.compare import compare
from starpullm.probe.findings import Fault, ProgramFinding, task_finding
from starpullm.probe.first_difference import RunAgain
from starpullm.probe.probe_schedules import waiting
from starpullm.probe.program_tasks import TaskFlow

MINIMISED = (Fault.OUTPUT_DIFFERS, Fault.INPUT_CHANGED)
_MOST_RUNS = 24
"""For all findings of a probe together."""
_NEAR = 10_000
"""Tasks before and after one of the two among which the other one is looked for."""


class Minimiser:
    """Looks for pairs of tasks until its runs are used up."""

    def __init__(self, reference: TaskFlow, run_again: RunAgain) -> None:
        self._reference, self._run_again = reference, run_again
        self._runs = 0

    def minimised(self, finding: ProgramFinding, other: TaskFlow) -> ProgramFinding:
        """Return a finding of another run with two tasks whose order is enough for it, if such are found.

        If their order changes a handle that one of them doesn't declare, the finding is about that one.
        """
        before, flow = self._runs, self._reference
        own = slice(flow.first[finding.task], flow.first[finding.task + 1])
        sources = flow.source[own][flow.handle[own] == finding.handle]
        writers = [flow.position(int(flow.log.task_of_access[source])) for source in sources[sources >= 0]]
        for task in (finding.task, *writers):
            pair = None if task is None else self._pair(finding, other, task)
            shown = None if pair is None else self._differs(finding, [pair[0]], pair[1])
            if pair is not None and shown is not None:
                text = (
                    f"other contents than in the reference schedule if {flow.name(pair[0])} waits for "
                    f"{flow.name(pair[1])}; found in {self._runs - before} more runs"
                )
                others = [task for task in pair if shown.handle not in flow.handle[flow.task == task]]
                kind, sentence = Fault.UNDECLARED_WRITE, "writes data that it doesn't declare"
                schedule, handle = waiting([pair[0]], pair[1]).name, shown.evidence["handle"]
                if shown.kind is Fault.INPUT_CHANGED and len(others) == 1:
                    handle = flow.handle_text(shown.handle)
                    writer = task_finding(kind, schedule, flow, others[0], sentence, handle=handle, evidence=text)
                    return replace(writer, handle=shown.handle, effect=shown)
                evidence = {"handle": handle, "evidence": text}
                return replace(shown, evidence=evidence, suspects=(), schedule=schedule, count=finding.count)
        return finding

    def _pair(self, finding: ProgramFinding, other: TaskFlow, pivot: int) -> tuple[int, int] | None:
        """Return a task that waits, and the one for which; one of them is the pivot.

        Tasks that ran before the pivot in the reference schedule, and behind or beside it in the other run, wait for
        it; or it waits for those that ran before or beside it in the other run only. In both cases as few as possible.
        """
        start = np.where(other.ready_ns >= 0, other.start_ns, -1)  # others don't come to the policy
        tasks = np.arange(other.num_tasks)
        near = (start >= 0) & (np.abs(tasks - pivot) <= _NEAR) & (tasks != pivot)
        behind = np.flatnonzero(near & (tasks < pivot) & (other.end_ns > start[pivot]))[::-1]
        count = _fewest(len(behind), lambda count: self._differs(finding, behind[:count][::-1], pivot))
        if count:
            return int(behind[count - 1]), pivot
        is_ahead = start < other.end_ns[pivot]
        ahead = np.flatnonzero(near & (tasks > pivot) & is_ahead)
        rest = np.append(pivot, np.flatnonzero(near & (tasks > pivot) & ~is_ahead))
        count = _fewest(
            len(ahead), lambda count: self._differs(finding, rest[rest < ahead[count - 1]], ahead[count - 1])
        )
        return (pivot, int(ahead[count - 1])) if count else None

    def _differs(
        self, finding: ProgramFinding, held: Sequence[int] | NDArray[np.int64], until: int
    ) -> ProgramFinding | None:
        """Return what differs of the finding's task if tasks wait for another one; an input that changed still does."""
        if self._runs == _MOST_RUNS:
            return None
        self._runs += 1
        flow = self._run_again(waiting(held, int(until)), "", finding)
        found = () if flow is None else compare(self._reference, flow, "").findings
        kinds = MINIMISED[MINIMISED.index(finding.kind) :]
        return next((one for one in found if one.kind in kinds and one.task == finding.task), None)


def _fewest(most: int, differs: Callable[[int], object]) -> int:
    """Return a count that makes a difference, although one less doesn't; 0 if the most makes none."""
    if most == 0 or not differs(most):
        return 0
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high
