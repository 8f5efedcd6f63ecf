"""Traces that are made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK
from starpullm.trace import HandleInfo, Trace

Flow = Sequence[Sequence[tuple[Any, int]]]
"""For every task its handles, by their numbers or names, and modes."""


def trace_of(flow: Flow, sizes: Mapping[str, int], operations: Sequence[str] = ("work",), **columns: Any) -> Trace:
    """Return a trace of tasks with these accesses; ``sizes`` are the handles' bytes, ``columns`` what tasks have."""
    tasks = np.zeros(len(flow), TRACE_TASK)
    tasks["id"] = np.arange(len(flow))
    tasks["num_accesses"] = [len(accesses) for accesses in flow]
    tasks["first_access"] = np.cumsum(tasks["num_accesses"]) - tasks["num_accesses"]
    for name, values in columns.items():
        tasks[name] = values
    numbers = {name: number for number, name in enumerate(sizes)}
    accesses = [(numbers.get(handle, handle), mode) for of_task in flow for handle, mode in of_task]
    handles = (HandleInfo(number, name, size) for number, (name, size) in enumerate(sizes.items()))
    return Trace(tasks, np.array(accesses, TRACE_ACCESS), tuple(operations), tuple(handles))
