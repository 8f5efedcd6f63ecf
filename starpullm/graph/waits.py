"""What a step waits for: the last chain of nodes of a schedule, each with the reason why it started no earlier."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from starpullm.graph.on_paper import PaperSchedule
from starpullm.graph.work import Work, work_of
from starpullm.trace import Trace

_INSTANCE = re.compile(r"\[\d+\]|[#@%~]\d+|/rank\d+")
"""What a handle's name has more than its tensor's."""


def waits_of(trace: Trace, work: Work, schedule: PaperSchedule) -> dict[str, float]:
    """Return what the last chain of nodes waits for; see `Prediction`."""
    waits = Counter[str]()
    node = int(np.argmax(schedule.end))
    while node >= 0:
        before = int(schedule.before[node])
        begin = int(schedule.end[before]) if before >= 0 else 0
        waits[_reason(trace, work, schedule, node)] += int(schedule.end[node]) - begin
        node = before
    return {name: time / schedule.makespan for name, time in waits.most_common() if time > 0}


def recorded_waits(trace: Trace) -> dict[str, float]:
    """Return what the recorded steps of one rank have waited for; see `Prediction`."""
    work, tasks = work_of(trace, np.zeros(len(trace.handles), np.int64), 1), trace.tasks
    start, end = (tasks[name] - tasks["start_ns"].min() for name in ("start_ns", "end_ns"))
    before, last = np.full(len(tasks), -1), dict[int, int]()
    for node in np.argsort(start, kind="stable").tolist():
        worker, order = int(tasks["worker"][node]), work.order
        waited_for = [*order.before[order.first[node] : order.first[node + 1]].tolist(), last.get(worker, -1)]
        before[node] = max(waited_for, key=lambda earlier: end[earlier] if earlier >= 0 else -1)
        last[worker] = node
    return waits_of(trace, work, PaperSchedule(start, start, end, tasks["worker"], before))


def _reason(trace: Trace, work: Work, schedule: PaperSchedule, node: int) -> str:
    if work.source[node] >= 0:
        return "messages"
    first, end = work.order.first[node], work.order.first[node + 1]
    handles = work.order.handle[first:end][work.order.before[first:end] == schedule.before[node]]
    if not len(handles):
        return "busy workers"
    names = [_INSTANCE.sub("", trace.handles[int(handle)].name) for handle in handles]
    return next((name for name in names if name.startswith("grads/")), names[0])
