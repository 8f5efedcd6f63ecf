"""The traces of all ranks as one: each task as the rank recorded it that ran it, with times on the clock of rank 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from starpullm.processes import Comm
from starpullm.processes.clocks import ClockReading, on_rank_0
from starpullm.trace import Trace

TRANSFER = "transfer"
"""The operation that is a message between ranks; it runs on no worker."""

_TIMES = ("submit_ns", "start_ns", "end_ns")


def is_kernel(trace: Trace) -> NDArray[np.bool_]:
    """Return, for each task, whether a worker ran it: all tasks but messages, shape (tasks,)."""
    names = np.array([name != TRANSFER for name in trace.operations], bool)
    kernels: NDArray[np.bool_] = names[trace.tasks["operation"]]
    return kernels


def on_one_clock(trace: Trace, comm: Comm | None, began: ClockReading, ended: ClockReading) -> Trace:
    """Return the trace of all ranks; each rank has to call this, with readings of before and after the tasks.

    Both ranks of a message have recorded it; the later of the two ends counts.
    """
    if comm is None:
        return trace
    own = trace.tasks.copy()
    for name in _TIMES:
        known = own[name] != 0
        own[name][known] = on_rank_0(own[name][known], began, ended)
    messages = ~is_kernel(trace)
    mine = np.flatnonzero((own["rank"] == comm.Get_rank()) | (messages & (own["end_ns"] != 0)))
    tasks = own.copy()
    ends = np.zeros(len(own), np.int64)
    for rank, (places, recorded) in enumerate(comm.allgather((mine, own[mine]))):
        ran = recorded["rank"] == rank
        tasks[places[ran]] = recorded[ran]
        ends[places] = np.maximum(ends[places], recorded["end_ns"])
    tasks["end_ns"][messages] = ends[messages]
    return replace(trace, tasks=tasks)
