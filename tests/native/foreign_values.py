"""Which tasks of a trace or a plan read what another block or sub-batch has left in memory that they share."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from starpullm.checks.execution_order import INSIDE_BLOCK
from starpullm.trace import AccessMode, Trace

_INSIDE_BLOCK = re.compile(rf"(?:activations|activation_grads)/(?:{'|'.join(INSIDE_BLOCK)})(?!\w)|grads/\w+~")


def foreign_values(trace: Trace) -> Iterator[str]:
    """Yield a sentence for each read of a value that a task of another block, or of another sub-batch, wrote last.

    Compared are the tensors that only one block uses, which may share their memory with those of others: activations
    and their gradients but residual3's, and gradients that are reused.
    """
    inside = {handle.id: handle.name for handle in trace.handles if _INSIDE_BLOCK.match(handle.name)}
    tasks, accesses = trace.tasks, trace.accesses
    owners = list(zip(tasks["layer"].tolist(), tasks["sub_batch"].tolist(), strict=True))
    task_of = np.repeat(np.arange(len(tasks)), tasks["num_accesses"]).tolist()
    written: dict[int, int] = {}
    for task, handle, mode in zip(task_of, accesses["handle"].tolist(), accesses["mode"].tolist(), strict=True):
        if handle not in inside:
            continue
        writer, compared = written.get(handle), 1 if inside[handle].startswith("grads") else 2
        if mode != AccessMode.WRITE and writer is not None and owners[writer][:compared] != owners[task][:compared]:
            of_other = f"expected one of its own block and sub-batch, found that of {trace[writer]}"
            yield f"{trace[task]}: value of {inside[handle]}: {of_other}"
        if mode != AccessMode.READ:
            written[handle] = task
