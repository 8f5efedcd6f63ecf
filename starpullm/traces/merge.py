"""The traces of all ranks as one: each task as the rank recorded it that ran it, with times on the clock of rank 0."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import RuntimeFailureError
from starpullm.processes.clocks import ClockReading, on_rank_0
from starpullm.trace import Trace

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

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

    Raises
    ------
    RuntimeFailureError
        If the ranks have submitted different tasks.
    """
    if comm is None:
        return trace
    own = trace.tasks.copy()
    for name in _TIMES:
        known = own[name] != 0
        own[name][known] = on_rank_0(own[name][known], began, ended)
    messages = ~is_kernel(trace)
    mine = np.flatnonzero((own["rank"] == comm.Get_rank()) | (messages & (own["end_ns"] != 0)))
    tasks, length = own.copy(), len(own)
    ends = np.zeros(length, np.int64)
    parts = comm.allgather((trace.handles, length, mine, own[mine]))
    for rank, (handles, found, places, recorded) in enumerate(parts):
        if (handles, found) != (parts[0][0], parts[0][1]):
            raise RuntimeFailureError(
                f"trace: rank {rank} has {found} tasks on {len(handles)} handles, expected those of rank 0: "
                f"{parts[0][1]} on {len(parts[0][0])}"
            )
        ran = recorded["rank"] == rank
        tasks[places[ran]] = recorded[ran]
        ends[places] = np.maximum(ends[places], recorded["end_ns"])
    tasks["end_ns"][messages] = ends[messages]
    return replace(trace, tasks=tasks)
