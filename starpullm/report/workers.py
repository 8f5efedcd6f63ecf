"""What each worker of each rank did when, its idle time, and the critical path; ``workers.js`` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.traces.content import HEX_COLORS, kind_of


@dataclass(frozen=True)
class WorkerRow:
    """A row of the table behind the chart; times in milliseconds."""

    name: str
    tasks: int
    busy: float
    idle_fraction: float
    longest_gap: float
    longest_gap_start: float


@dataclass(frozen=True)
class Workers:
    """The timeline of a recording, and the table behind it; times in milliseconds."""

    name: str
    configuration: str
    num_tasks: int
    duration: float
    critical_tasks: int
    critical_time: float
    rows: tuple[WorkerRow, ...]
    longest: tuple[tuple[str, int, float], ...]
    """The operations that took the most time: name, number of tasks, time."""

    kinds: tuple[str, ...]
    """The kinds of the operations, for the legend."""

    drawn: Mapping[str, Any]
    """What ``workers.js`` draws: names and colours, and columns of the tasks in the order of their start, in ns."""


def workers_of(recording: Mapping[str, Any]) -> Workers | None:
    """Return the timeline of a recording, or None if no worker ran a task."""
    tasks = {name: np.array(values, np.int64) for name, values in recording["tasks"].items()}
    ran = np.flatnonzero(tasks["worker"] >= 0)
    if not len(ran):
        return None
    ran = ran[np.argsort(tasks["start"][ran], kind="stable")]
    tasks = {name: values[ran] for name, values in tasks.items()}
    places = sorted(set(zip(tasks["rank"].tolist(), tasks["worker"].tolist(), strict=True)))
    several_ranks = len({rank for rank, _ in places}) > 1
    names = [f"rank {rank}, worker {worker}" if several_ranks else f"worker {worker}" for rank, worker in places]
    row_of = {place: row for row, place in enumerate(places)}
    rows = np.array([row_of[at] for at in zip(tasks["rank"].tolist(), tasks["worker"].tolist(), strict=True)], np.int64)
    start, end = (tasks[name].astype(np.float64) * 1e-6 for name in ("start", "end"))
    critical = np.isin(ran, recording["critical_path"])
    duration = float(end.max())
    operations: list[str] = recording["operations"]
    kinds = [kind_of(operation) for operation in operations]
    columns = {name: tasks[name] for name in ("start", "end", "operation", "step", "sub_batch", "layer")}
    return Workers(
        name=recording["name"],
        configuration=recording["configuration"],
        num_tasks=len(ran),
        duration=duration,
        critical_tasks=int(critical.sum()),
        critical_time=float((end - start)[critical].sum()),
        rows=tuple(_row(name, start[rows == row], end[rows == row], duration) for row, name in enumerate(names)),
        longest=_longest(operations, tasks["operation"], end - start),
        kinds=tuple(kind for kind in HEX_COLORS if kind in {kinds[number] for number in tasks["operation"].tolist()}),
        drawn={
            "rows": names,
            "operations": operations,
            "colours": [HEX_COLORS[kind] for kind in kinds],
            **{name: column.tolist() for name, column in columns.items()},
            "row": rows.tolist(),
            "critical": critical.astype(np.int64).tolist(),
        },
    )


def _row(name: str, start: NDArray[np.float64], end: NDArray[np.float64], duration: float) -> WorkerRow:
    order = np.argsort(start)
    begins, ends = np.append(start[order], duration), np.insert(np.maximum.accumulate(end[order]), 0, 0.0)
    gaps = begins - ends
    longest = int(gaps.argmax())
    busy = float((end - start).sum())
    idle = max(0.0, 1 - busy / duration) if duration else 0.0
    return WorkerRow(name, len(start), busy, idle, float(max(gaps[longest], 0)), float(ends[longest]))


def _longest(
    operations: list[str], numbers: NDArray[np.int64], durations: NDArray[np.float64]
) -> tuple[tuple[str, int, float], ...]:
    counts = np.bincount(numbers, minlength=len(operations))
    times = np.bincount(numbers, weights=durations, minlength=len(operations))
    return tuple((operations[i], int(counts[i]), float(times[i])) for i in np.argsort(-times)[:8] if counts[i])
