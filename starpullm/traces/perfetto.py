"""The JSON trace event format of Chrome, which Perfetto (ui.perfetto.dev), chrome://tracing and speedscope open.

Its description: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A
process is a rank, a thread a worker; a flow is a dependency.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starpullm.traces.content import dependencies_of_run_tasks, kind_of, microseconds, task_fields
from starpullm.traces.traced_run import TracedRun


def perfetto_lines(run: TracedRun) -> Iterator[str]:
    """Yield the lines of the JSON file, one for each event."""
    head = {"displayTimeUnit": "ns", "otherData": {"program": run.program, **_flat(run)}}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for event in _events(run):
        yield separator + json.dumps(event)
        separator = ",\n"
    yield "\n]}\n"


def _flat(run: TracedRun) -> dict[str, str]:
    """Return the settings and ranks as texts: viewers show these only."""
    ranks = {
        f"rank {number}": f"{rank.host}, partition {rank.partition}, clock ±{rank.clock_uncertainty_ns} ns"
        for number, rank in enumerate(run.ranks)
    }
    return {name: str(value) for name, value in run.settings.items()} | ranks


def _events(run: TracedRun) -> Iterator[dict[str, Any]]:
    for rank, info in enumerate(run.ranks):
        yield _metadata("process_name", rank, name=f"rank {rank} on {info.host}, {info.partition}")
        yield _metadata("process_sort_index", rank, sort_index=rank)
    workers = sorted({(task.rank, task.worker) for task in run.trace if task.worker >= 0})
    for rank, worker in workers:
        yield _metadata("thread_name", rank, worker, name=f"worker {worker}")
        yield _metadata("thread_sort_index", rank, worker, sort_index=worker)
    for task in run.trace:
        if task.worker >= 0:
            yield {
                "ph": "X",
                "name": task.operation,
                "cat": kind_of(task.operation),
                "pid": task.rank,
                "tid": task.worker,
                "ts": microseconds(run, task.start_ns),
                "dur": (task.end_ns - task.start_ns) / 1000,
                "args": task_fields(run, task),
            }
    yield from _flows(run)


def _metadata(kind: str, rank: int, worker: int = 0, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": worker, "args": arguments}


def _flows(run: TracedRun) -> Iterator[dict[str, Any]]:
    """Yield two events for each dependency; each must lie inside the slice of its task to be attached to it."""
    tasks = run.trace.tasks
    for number, edge in enumerate(dependencies_of_run_tasks(run)):
        before, after = tasks[edge.before], tasks[edge.after]
        last_ns = max(int(before["start_ns"]), int(before["end_ns"]) - 1)
        common = {"id": number, "name": "reuse" if edge.is_reuse else "data", "cat": "dependency"}
        yield {
            "ph": "s",
            **common,
            "pid": int(before["rank"]),
            "tid": int(before["worker"]),
            "ts": microseconds(run, last_ns),
            "args": {"handles": " ".join(edge.handles)},
        }
        yield {
            "ph": "f",
            "bp": "e",
            **common,
            "pid": int(after["rank"]),
            "tid": int(after["worker"]),
            "ts": microseconds(run, int(after["start_ns"])),
        }
