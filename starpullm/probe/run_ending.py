"""How a run of a program ended: whether that is a fault, which ranks and tasks took part, and where they were."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.findings import Fault, ProgramFinding, task_finding
from starpullm.probe.probe_schedules import REPEATED
from starpullm.probe.program_tasks import TaskFlow, listed
from starpullm.probe.recorded import RecordedRun
from starpullm.processes.endings import signal_name

_LISTED = 8
_LAST_LINES = 10
"""Of what the program wrote to standard error."""


def ending_finding(run: RecordedRun, reference: RecordedRun) -> ProgramFinding | None:
    """Return what to report of a run's ending; None if it ended as the reference schedule, and that one with 0."""
    status = run.ending.status
    if status is not None and status == (reference.ending.status if run is not reference else 0):
        return None
    evidence = {} if run is reference else {"reference schedule": f"the program {reference.ending}"}
    kind = Fault.POISONED_ENDING if run.schedule.poison else Fault.ENDING
    if run.schedule is REPEATED and run.is_complete:
        kind = Fault.CHANGING_INPUT
    sentence, name = describe_ending(run), run.schedule.name
    for flow in run.flows.values() if run.schedule.poison else ():
        for task in running_tasks(flow).tolist():  # it is likely the one that reads poison
            return task_finding(kind, name, flow, task, sentence, **evidence)
    return ProgramFinding(sentence, evidence, kind=kind, schedule=name)


def describe_ending(run: RecordedRun) -> str:
    """Return how the program ended, and which ranks had a part in it."""
    text = f"the program {run.ending}"
    ranks = {rank: flow for rank, flow in run.flows.items() if rank >= 0}
    if not ranks or run.ending.status == 0:
        return text
    parts = list(_where_ranks_were(ranks) if run.ending.status is None else _culprits(run, ranks))
    parts += [f"rank {rank} hadn't started StarPU" for rank in run.missing_ranks]
    return f"{text}: {', '.join(parts)}" if parts else text


def _where_ranks_were(ranks: Mapping[int, TaskFlow]) -> Iterator[str]:
    for rank, flow in ranks.items():
        tasks = running_tasks(flow)
        if len(tasks):
            yield f"rank {rank} was running {_names(flow, tasks)}"
        elif int(flow.log.header["ended"]) == 0:
            yield f"rank {rank} was running no task"


def _culprits(run: RecordedRun, ranks: Mapping[int, TaskFlow]) -> Iterator[str]:
    """Yield the ranks that ended by a fault, the first one first; those that the launcher then ended are left out."""
    places = {pid: place for place, pids in enumerate(run.ending.ended) for pid in pids}
    order = {rank: places.get(int(flow.log.header["pid"]), len(places)) for rank, flow in ranks.items()}
    faults = {rank: fault for rank, flow in ranks.items() if (fault := _fault(flow))}
    silent = {rank: order[rank] for rank, flow in ranks.items() if int(flow.log.header["ended"]) == 0}
    first_fault = min((order[rank] for rank in faults), default=len(places))
    for rank in _killed(run, silent, first_fault, has_faults=bool(faults)):
        yield f"rank {rank} was killed, or left without exit()"
    for rank in sorted(faults, key=lambda rank: order[rank]):
        yield f"rank {rank} {faults[rank]}"


def _killed(run: RecordedRun, silent: Mapping[int, int], first_fault: int, *, has_faults: bool) -> list[int]:
    """Return the ranks that ended first, without leaving a word as one that was killed; not those that were ended then.

    ``silent`` has the ranks that left nothing, with their places in the order of endings. Open MPI's mpirun names the
    one that was killed; otherwise it is the one that ended first.
    """
    named = re.search(r"process rank (\d+)\b[^\n]*exited on signal", run.ending.stderr)
    first = min(silent.values(), default=first_fault)
    is_first = first < first_fault and not run.missing_ranks
    if not is_first and (named is None or has_faults):
        return []
    if named is not None and int(named[1]) in silent:
        return [int(named[1])]
    return [rank for rank, place in silent.items() if place == first]


def _fault(flow: TaskFlow) -> str:
    """Return how a process ended, if that is a fault and it could say so."""
    header = flow.log.header
    if header["ended"] == probe_log.ENDED_BY_SIGNAL:
        return f"was ended by {signal_name(int(header['signal']))}"
    if header["ended"] == probe_log.ENDED_BY_ITSELF and header["exit_status"] != 0:
        return f"ended with exit status {header['exit_status']}"
    return ""


def running_tasks(flow: TaskFlow) -> NDArray[np.int64]:
    """Return the tasks that had started and not ended."""
    return np.flatnonzero((flow.start_ns >= 0) & (flow.end_ns < 0) & flow.has_function)


def last_moments(run: RecordedRun) -> Iterator[str]:
    """Yield lines about a run that didn't end by itself: each process's tasks, and what it said; then the stacks."""
    for rank, flow in run.flows.items():
        name = f"rank {rank}, {run.schedule.name}" if rank >= 0 else run.schedule.name
        yield from (f"{name}: {line}" for line in _last_moments_of(flow))
    yield from (f"standard error: {line}" for line in run.ending.stderr.splitlines()[-_LAST_LINES:])
    ranks = {int(flow.log.header["pid"]): f"rank {rank}, " for rank, flow in run.flows.items() if rank >= 0}
    for pid, stack in run.ending.stacks.items():
        yield from (f"{ranks.get(pid, '')}stack: {line}" for line in stack.splitlines())


def _last_moments_of(flow: TaskFlow) -> Iterator[str]:
    """Yield lines about a process: tasks that had run, were running or ready, and its stack."""
    ready = np.flatnonzero((flow.ready_ns >= 0) & (flow.start_ns < 0))
    yield f"{int((flow.end_ns >= 0).sum())} of {flow.num_submitted} submitted tasks had ended"
    yield f"running: {_names(flow, running_tasks(flow))}"
    yield f"ready: {_names(flow, ready)}"
    if flow.log.header["ended"] == probe_log.ENDED_BY_SIGNAL:
        number = int(flow.log.header["signal_task"])
        position = flow.position(number - 1) if number else None
        yield f"the signal came {'not in a task' if position is None else f'in {flow.name(position)}'}; the stack:"
        yield from (f"  {frame}" for frame in flow.log.stack.splitlines())


def _names(flow: TaskFlow, tasks: NDArray[np.int64]) -> str:
    return listed([flow.name(task) for task in tasks.tolist()], _LISTED) or "none"
