"""Where the time of a traced run goes: to kernels, to StarPU, or to waiting for data."""

from __future__ import annotations

from typing import Any

import numpy as np

from starpullm.graph.merge import is_kernel
from starpullm.graph.required_order import required_edges
from starpullm.trace import Trace


def attribute_time(trace: Trace, begin_ns: int, end_ns: int, *, workers: int, ranks: int = 1) -> dict[str, Any]:
    """Attribute the time of all workers to kernels, to the runtime and to waiting: fields of ``measure.Throughput``.

    The trace has every task, with the times of the rank that ran it; each rank has `workers` workers. The submission of
    the first task began at `begin_ns`, when tasks without predecessors are ready; the end of all was known at `end_ns`.
    After the last kernel, one worker of each rank counts as idle because of the runtime.
    """
    tasks = trace.tasks
    ends = tasks["end_ns"]
    predecessors = required_edges(tasks, trace.accesses).predecessors
    ready = np.array([max((ends[before] for before in row), default=begin_ns) for row in predecessors], np.int64)
    kernel = is_kernel(trace)
    last_end = ends[kernel].max(initial=begin_ns)
    capacity = (end_ns - begin_ns) * workers * ranks
    busy_time, runtime_time = 0, 0
    idle = []
    for rank in range(ranks):
        own = kernel & (tasks["rank"] == rank)
        start, end = tasks["start_ns"][own], tasks["end_ns"][own]
        busy = np.bincount(tasks["worker"][own], weights=end - start, minlength=workers)
        busy_time += int(busy.sum())
        idle += [1 - float(of_worker) / (end_ns - begin_ns) for of_worker in busy]
        # Three events of each task change how many tasks could run and how many do: it becomes ready, starts, ends.
        # From the last end to `end_ns` there is one more thing to do: to make the end known.
        count = len(start)
        times = np.concatenate([np.minimum(ready[own], start), start, end, [last_end, end_ns]])
        could_run = np.concatenate([np.ones(count), -np.ones(count), np.zeros(count), [1, -1]])
        running = np.concatenate([np.zeros(count), np.ones(count), -np.ones(count), [0, 0]])
        order = np.argsort(times, kind="stable")
        spans = np.diff(times[order])
        unused = np.minimum(workers - np.cumsum(running[order])[:-1], np.cumsum(could_run[order])[:-1])
        runtime_time += int((spans * unused).sum())
    waiting_time = capacity - busy_time - runtime_time
    return {
        "kernel_fraction": busy_time / capacity,
        "runtime_overhead_fraction": runtime_time / capacity,
        "waiting_fraction": waiting_time / capacity,
        "idle_fractions": idle,
    }
