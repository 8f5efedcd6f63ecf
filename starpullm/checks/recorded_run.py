"""A recorded run as JSON values: its tasks, which has to wait for which, and the critical path. Reports draw it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.dependencies import required_edges
from starpullm.trace import Trace

_COLUMNS = ("operation", "step", "sub_batch", "layer", "rank", "worker")


def recorded_run(trace: Trace, *, name: str, configuration: str, layers: int) -> dict[str, Any]:
    """Return a recording as ``schema.json`` of ``starpullm.report`` describes it.

    The edges are those into the tasks of the second step, or of the only one: there is one iteration as it is when the
    handles of an earlier one are reused. ``trace`` has the tasks of all ranks, with times on one clock.

    Parameters
    ----------
    name
        What was trained.
    configuration
        Where.
    layers
        L, that of the model.
    """
    tasks = trace.tasks
    graph = required_edges(tasks, trace.accesses)
    ran = tasks["worker"] >= 0
    durations = np.where(ran, tasks["end_ns"] - tasks["start_ns"], 0)
    _, path = graph.critical_path(durations)
    begin = int(tasks["start_ns"][ran].min(initial=np.iinfo(np.int64).max)) if ran.any() else 0
    columns = {column: tasks[column].astype(np.int64).tolist() for column in _COLUMNS}
    for column in ("start", "end"):
        columns[column] = np.where(ran, tasks[f"{column}_ns"] - begin, 0).tolist()
    steps = np.unique(tasks["step"])
    drawn = graph.with_edges(tasks["step"][graph.after] == steps[min(1, len(steps) - 1)]) if len(steps) else graph
    edges: dict[str, NDArray[np.integer]] = {
        "before": drawn.before,
        "after": drawn.after,
        "handle": drawn.handle,
        "kind": drawn.kind,
    }
    return {
        "name": name,
        "configuration": configuration,
        "layers": layers,
        "operations": list(trace.operations),
        "handles": [handle.name for handle in trace.handles],
        "tasks": columns,
        "edges": {column: numbers.tolist() for column, numbers in edges.items()},
        "critical_path": path,
    }
