"""The order of a run, compared with the order that its declared accesses require."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from starpullm.binding import structs
from starpullm.checks.dependencies.observed_order import observe
from starpullm.checks.result import MAX_LISTED
from starpullm.errors import InvalidArgumentError
from starpullm.files import probe_log
from starpullm.probe.findings import Fault, ProgramFinding, task_finding
from starpullm.probe.program_tasks import TaskFlow
from starpullm.trace import AccessMode, HandleInfo, Trace

_MOST_TASKS = 200_000
"""For one more, the check takes about 12 µs and 700 bytes of memory in each run (2 cores, AMD EPYC, 2026-11-26)."""
_CLAIM = "whether tasks started only after those that they have to wait for"


def trace_of(flow: TaskFlow) -> Trace:
    """Return a task flow as a trace: accesses whose order StarPU may choose are contributions, which commute.

    Scratch memory, what isn't sequentially consistent and what threads submit at once have no order, and are left out.
    """
    mode = flow.mode
    commutes = (mode & (probe_log.MODE_REDUX | probe_log.MODE_COMMUTE)) != 0
    kept = ((mode & probe_log.MODE_SCRATCH) == 0) & ~flow.is_unordered & ~flow.is_raced
    plain = mode & int(AccessMode.READ_WRITE)
    accesses = np.zeros(int(kept.sum()), structs.TRACE_ACCESS)
    accesses["handle"] = flow.handle[kept]
    accesses["mode"] = np.where(commutes, int(AccessMode.REDUX), plain)[kept]
    counts = np.bincount(flow.task[kept], minlength=flow.num_tasks)
    tasks = np.zeros(flow.num_tasks, structs.TRACE_TASK)
    tasks["id"] = np.arange(flow.num_tasks)
    tasks["sub_batch"] = tasks["layer"] = -1
    tasks["operation"] = flow.codelet
    tasks["submit_ns"] = flow.log.tasks["submit_ns"][flow.tasks]
    tasks["start_ns"], tasks["end_ns"] = flow.start_ns, flow.end_ns
    complete = (flow.start_ns >= 0) & (flow.end_ns >= 0)
    tasks["worker"] = np.where(complete, flow.log.workers[flow.tasks], -1)
    tasks["first_access"] = np.concatenate([[0], np.cumsum(counts)])[:-1]
    tasks["num_accesses"] = counts
    handles = tuple(
        HandleInfo(handle, f"handle {handle}", int(flow.log.handles["bytes"][of_log]))
        for handle, of_log in enumerate(flow.handle_of_log.tolist())
    )
    return Trace(tasks, accesses, flow.log.names, handles)


def broken_order(schedule: str, flow: TaskFlow) -> Iterator[ProgramFinding]:
    """Yield pairs of tasks of which the second started before the end of the first, for which it has to wait."""
    flow = flow.truncated(flow.num_submitted)
    if flow.num_tasks > _MOST_TASKS:
        why = f"found {flow.num_tasks} tasks, expected at most {_MOST_TASKS}"
        yield ProgramFinding(f"{_CLAIM}: {why}", kind=Fault.NOT_CHECKED, schedule=schedule)
        return
    try:
        violations = observe(trace_of(flow)).violations
    except InvalidArgumentError as error:
        yield ProgramFinding(f"{_CLAIM}: {error}", kind=Fault.NOT_CHECKED, schedule=schedule)
        return
    for path in violations[:MAX_LISTED]:
        before, after = path[0].before, path[-1].after
        early = flow.end_ns[before] - flow.start_ns[after]
        sentence = f"starts before the end of {flow.name(before)}, for which it has to wait"
        evidence = f"{early} ns before, although both use handle {path[0].handle}"
        yield task_finding(Fault.ORDER, schedule, flow, after, sentence, evidence=evidence)
