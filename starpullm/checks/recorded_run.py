"""A recorded run as JSON values: its tasks and the critical path. Reports draw it."""

from __future__ import annotations

from typing import Any

import numpy as np

from starpullm.checks.dependencies.required_order import required_edges
from starpullm.trace import Trace

_COLUMNS = ("operation", "step", "sub_batch", "layer", "rank", "worker")


def recorded_run(trace: Trace, *, name: str, configuration: str) -> dict[str, Any]:
    """Return a recording as `starpullm.report.document.Recording` describes it.

    ``trace`` has the tasks of all ranks, with times on one clock.

    Parameters
    ----------
    name
        What was trained.
    configuration
        Where.
    """
    tasks = trace.tasks
    ran = tasks["worker"] >= 0
    durations = np.where(ran, tasks["end_ns"] - tasks["start_ns"], 0)
    _, path = required_edges(tasks, trace.accesses).critical_path(durations)
    begin = int(tasks["start_ns"][ran].min(initial=np.iinfo(np.int64).max)) if ran.any() else 0
    columns = {column: tasks[column].astype(np.int64).tolist() for column in _COLUMNS}
    for column in ("start", "end"):
        columns[column] = np.where(ran, tasks[f"{column}_ns"] - begin, 0).tolist()
    return {
        "name": name,
        "configuration": configuration,
        "operations": list(trace.operations),
        "tasks": columns,
        "critical_path": path,
    }
