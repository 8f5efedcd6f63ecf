"""A recorded run of all ranks as JSON values: its tasks and the critical path. Reports draw it."""

from __future__ import annotations

from typing import Any

import numpy as np

from starpullm.checks.cases import Case, find_record
from starpullm.checks.check_context import CheckContext
from starpullm.checks.training import STEPS, trace_steps, traced_trainer
from starpullm.graph.merge import on_one_clock
from starpullm.graph.required_order import required_edges
from starpullm.processes.clocks import read_clock
from starpullm.trace import Trace

MAX_RECORDED = 4
"""Configurations of which a report has a recording, at most."""

MAX_RECORDED_PARAMETERS = 10**7
"""Of a model that is recorded for a report, because its steps take time and memory of their own."""

_COLUMNS = ("operation", "step", "sub_batch", "layer", "rank", "worker")


def recorded_run(trace: Trace, *, name: str, configuration: str) -> dict[str, Any]:
    """Return a recording as a report has it; docs/formats.md describes that.

    ``trace`` has the tasks of all ranks, with times on one clock; ``name`` is what was trained, and where is its
    ``configuration``.
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


def record_steps(context: CheckContext, case: Case) -> dict[str, Any]:
    """Return the recording of ``STEPS`` steps of all ranks, which all call this."""
    runtime = context.runtime
    with traced_trainer(context, case) as trainer:
        began = read_clock(runtime.comm)
        trace = on_one_clock(trace_steps(trainer, case.seed), runtime.comm, began, read_clock(runtime.comm))
    name = f"{find_record(case.record).name}, sub-batches {case.sub_batches}, {case.reduction}, {STEPS} steps"
    return recorded_run(trace, name=name, configuration=str(context))
