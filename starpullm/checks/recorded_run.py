"""A recorded run as JSON values: its tasks and the critical path. Reports draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from starpullm.checks.dependencies import required_edges
from starpullm.processes.clocks import ClockReading, on_rank_0
from starpullm.trace import Trace

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_COLUMNS = ("operation", "step", "sub_batch", "layer", "rank", "worker")


def recorded_run(trace: Trace, *, name: str, configuration: str) -> dict[str, Any]:
    """Return a recording as `starpullm.report.document.Recording` describes it.

    ``trace`` has the tasks of all ranks, with times on one clock.

    Parameters
    ----------
    name
        What was trained.
    configuration
        Where.
    """
    tasks = trace.tasks
    ran = tasks["worker"] >= 0
    durations = np.where(ran, tasks["end_ns"] - tasks["start_ns"], 0)
    _, path = required_edges(tasks, trace.accesses).critical_path(durations)
    begin = int(tasks["start_ns"][ran].min(initial=np.iinfo(np.int64).max)) if ran.any() else 0
    columns = {column: tasks[column].astype(np.int64).tolist() for column in _COLUMNS}
    for column in ("start", "end"):
        columns[column] = np.where(ran, tasks[f"{column}_ns"] - begin, 0).tolist()
    return {
        "name": name,
        "configuration": configuration,
        "operations": list(trace.operations),
        "tasks": columns,
        "critical_path": path,
    }


def of_all_ranks(trace: Trace, comm: Comm, began: ClockReading, ended: ClockReading) -> Trace:
    """Return a trace in which each task has the worker and times that the rank has recorded which ran it.

    Times are on the clock of rank 0. All ranks must call this, with their own readings from before and after the tasks.
    """
    own = trace.tasks.copy()
    for name in ("submit_ns", "start_ns", "end_ns"):
        known = own[name] != 0
        own[name][known] = on_rank_0(own[name][known], began, ended)
    tasks = own.copy()
    for rank, recorded in enumerate(comm.allgather(own)):
        mine = tasks["rank"] == rank
        tasks[mine] = recorded[mine]
    return Trace(tasks, trace.accesses, trace.operations, trace.handles)
