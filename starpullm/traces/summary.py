"""A trace in a few lines: where and how long it ran, how busy the workers were, and the critical path."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from starpullm.graph.required_order import required_edges
from starpullm.traces.traced_run import TracedRun

_MOST_OPERATIONS = 5


def summary_lines(run: TracedRun) -> Iterator[str]:
    """Yield the lines."""
    tasks, has_run = run.trace.tasks, run.has_run
    number = int(has_run.sum())
    steps = np.unique(tasks["step"])
    settings = ", ".join(f"{name} {value}" for name, value in run.settings.items() if not isinstance(value, dict))
    yield f"{run.program}: {settings}"
    yield f"{len(tasks)} tasks in {len(steps)} submissions, of which workers have run {number}"
    for rank, info in enumerate(run.ranks):
        clock = f"±{info.clock_uncertainty_ns / 1000:g} µs" if info.clock_uncertainty_ns else "that of rank 0"
        own = int((has_run & (tasks["rank"] == rank)).sum())
        yield f"rank {rank} on {info.host}, partition {info.partition}: {own} tasks, clock {clock}"
    if not number:
        return
    durations = np.where(has_run, tasks["end_ns"] - tasks["start_ns"], 0)
    length = int(tasks["end_ns"][has_run].max() - tasks["start_ns"][has_run].min())
    workers = len(np.unique(tasks[["rank", "worker"]][has_run]))
    busy = float(durations.sum()) / (length * workers) if length else 1.0
    critical, path = required_edges(tasks, run.trace.accesses).critical_path(durations)
    yield f"{length / 1e6:.3f} ms, {workers} workers busy {100 * busy:.1f} % of the time"
    yield f"critical path: {critical / 1e6:.3f} ms, {len(path)} tasks"
    for operation, seconds in list(run.trace.seconds_by_operation().items())[:_MOST_OPERATIONS]:
        yield f"  {operation}: {seconds * 1e3:.3f} ms"
