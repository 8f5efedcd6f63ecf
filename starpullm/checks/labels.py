"""What a trace says of its tasks - sub-batch, layer, rank, worker, time - compared with the data they access.

All other checks of traces, and everything that shows one, take these labels as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from starpullm.trace import AccessMode, Trace

_OF_SUB_BATCH = re.compile(r"(?:activations|activation_grads|inputs|targets)\b[^#]*#(\d+)$")
_OF_RANK = re.compile(r"activation_grads/losses/rank(\d+)$")
"""The sub-batches of a rank share this constant."""
_OF_LAYER = re.compile(r"(?:params|m|v)/\w+(?:\[(\d+)\])?$")
_NO_LAYER = -1
_NO_WORKER = -1
_OF_A_TRANSFER = [AccessMode.WRITE, AccessMode.READ]
_UNKNOWN = -2


def wrong_labels(trace: Trace, ranks: int = 1) -> Iterator[str]:
    """Yield a sentence for each label that contradicts the task's accesses or the order of submission.

    A handle's name has the sub-batch whose activations or tokens it holds, or the layer whose parameter it is; every
    rank has as many sub-batches as the others, in the order of ranks. Tasks are submitted in the order of the trace.
    A transfer writes one handle and reads another.
    """
    tasks = trace.tasks
    sub_batches, layers = zip(*map(_labels_of_handle, (handle.name for handle in trace.handles)), strict=True)
    task_of = np.repeat(np.arange(len(tasks)), tasks["num_accesses"])
    handles = trace.accesses["handle"]
    per_rank = max((max(sub_batches) + 1) // ranks, 1)
    of_rank = [_OF_RANK.match(handle.name) for handle in trace.handles]
    homes = [int(match[1]) if match else _UNKNOWN for match in of_rank]
    for field, of_handle in (("sub_batch", sub_batches), ("layer", layers), ("rank", homes)):
        expected = np.array(of_handle)[handles]
        wrong = (expected != _UNKNOWN) & (tasks[field][task_of] != expected)
        for access in np.flatnonzero(wrong).tolist():
            task = int(task_of[access])
            name = trace.handles[int(handles[access])].name
            yield f"{trace[task]}: found {field} {tasks[field][task]}, expected that of {name}"
    has_home = tasks["sub_batch"] >= 0
    for task in np.flatnonzero(has_home & (tasks["rank"] != tasks["sub_batch"] // per_rank)).tolist():
        yield f"{trace[task]}: found rank {tasks['rank'][task]}, expected the home of its sub-batch"
    for task in np.flatnonzero(tasks["worker"] < _NO_WORKER).tolist():
        worker = tasks["worker"][task]
        yield f"{trace[task]}: found worker {worker}, expected {_NO_WORKER} where this rank doesn't run it"
    is_transfer = np.array([operation == "transfer" for operation in trace.operations])
    for task in np.flatnonzero(is_transfer[tasks["operation"]]).tolist():
        modes = [access.mode for access in trace[task].accesses]
        if modes != _OF_A_TRANSFER:
            found, expected = (", ".join(mode.name for mode in some) for some in (modes, _OF_A_TRANSFER))
            yield f"{trace[task]}: found accesses {found}, expected {expected}"
    late = np.diff(tasks["submit_ns"], prepend=1) < 0
    for task in np.flatnonzero(late).tolist():
        time_ns = tasks["submit_ns"][task]
        yield f"{trace[task]}: submitted at {time_ns} ns, expected a time that is not before the last"


def _labels_of_handle(name: str) -> tuple[int, int]:
    """Return the sub-batch and the layer of the tasks that access a handle; `_UNKNOWN`: any."""
    sub_batch, layer = _OF_SUB_BATCH.match(name), _OF_LAYER.match(name)
    return (
        int(sub_batch[1]) if sub_batch else _UNKNOWN,
        (_NO_LAYER if layer[1] is None else int(layer[1])) if layer else _UNKNOWN,
    )
