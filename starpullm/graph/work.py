"""What has to happen in which order: the tasks of a plan or a recording, and the messages between ranks that they need.

StarPU-MPI's rules: a rank gets each value that its tasks read and that another rank owns once, keeps it until a task
changes it, and sends what its tasks write to the owner. So each rank has a copy of its own of each handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from starpullm.graph.merge import is_kernel
from starpullm.graph.required_order import graph_of, task_flow
from starpullm.graph.task_graph import TaskGraph
from starpullm.trace import AccessMode, Trace

MESSAGE = -1


@dataclass(frozen=True)
class Work:
    """Tasks and messages in the order of submission.

    ``task`` is the number of a task in the trace, `MESSAGE` for a message that StarPU-MPI adds. ``rank`` is where a
    task runs or a message arrives, ``source`` where a message comes from; it is -1 for tasks. ``bytes`` is a message's
    length. An edge of ``order`` has a handle of the trace.
    """

    task: NDArray[np.int64]
    rank: NDArray[np.int64]
    source: NDArray[np.int64]
    bytes: NDArray[np.int64]
    order: TaskGraph


def work_of(trace: Trace, owners: NDArray[np.int64], ranks: int) -> Work:
    """Return the tasks of a trace with their messages, and the order that StarPU derives from their accesses."""
    flow = task_flow(trace.tasks, trace.accesses)
    kernels = is_kernel(trace).tolist()
    task_ranks = trace.tasks["rank"].tolist()
    owner = owners.tolist()
    sizes = [handle.bytes for handle in trace.handles]
    copies: dict[int, set[int]] = {}  # the ranks that have a valid copy of a handle beside its owner
    nodes: list[tuple[int, int, int, int]] = []
    accesses: list[Sequence[tuple[int, int]]] = []

    def send(task: int, handle: int, source: int, target: int, destination: int) -> None:
        nodes.append((task, destination, source, sizes[handle]))
        accesses.append(
            [(target * ranks + destination, int(AccessMode.WRITE)), (handle * ranks + source, int(AccessMode.READ))]
        )

    for task, (rank, uses) in enumerate(zip(task_ranks, flow, strict=True)):
        if not kernels[task]:
            (target, _), (handle, _) = uses
            send(task, handle, owner[handle], target, owner[target])
            continue
        for handle, mode in uses:
            if owner[handle] != rank and mode != AccessMode.WRITE and rank not in copies.get(handle, ()):
                send(MESSAGE, handle, owner[handle], handle, rank)
                copies.setdefault(handle, set()).add(rank)
        nodes.append((task, rank, -1, 0))
        accesses.append([(handle * ranks + rank, mode) for handle, mode in uses])
        for handle, mode in uses:
            if mode != AccessMode.READ:
                copies.pop(handle, None)
                if owner[handle] != rank:
                    send(MESSAGE, handle, rank, handle, owner[handle])
    tasks, destinations, sources, lengths = np.array(nodes, np.int64).reshape(-1, 4).T
    order = graph_of(accesses)
    return Work(tasks, destinations, sources, lengths, replace(order, handle=order.handle // ranks))
