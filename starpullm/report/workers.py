"""What each worker of each rank did when, its idle time, and the critical path; ``workers.js`` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.report.pipeline import PASSES
from starpullm.traces.content import HEX_COLORS, kind_of

_LONGEST = 8
"""Operations in the table."""


def workers_of(recording: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the timeline of a recording, times in milliseconds, or None if no worker ran a task.

    ``rows`` are those of the table behind the chart, ``longest`` the operations that took the most time: name, number
    of tasks, time. ``drawn`` is what ``workers.js`` draws: names and colours, and columns of the tasks in the order of
    their start, in ns.
    """
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
    rows = np.array(
        [row_of[place] for place in zip(tasks["rank"].tolist(), tasks["worker"].tolist(), strict=True)], np.int64
    )
    start, end = (tasks[name].astype(np.float64) * 1e-6 for name in ("start", "end"))
    critical = np.isin(ran, recording["critical_path"])
    duration = float(end.max())
    operations: list[str] = recording["operations"]
    kinds = [operation if operation in PASSES else kind_of(operation) for operation in operations]
    all_colours = {**HEX_COLORS, **PASSES}
    columns = {name: tasks[name] for name in ("start", "end", "operation")}
    used = {kinds[number] for number in tasks["operation"].tolist()}
    return {
        "name": recording["name"],
        "configuration": recording["configuration"],
        "num_tasks": len(ran),
        "unit": "passes" if operations == list(PASSES) else "tasks",
        "duration": duration,
        "critical_tasks": int(critical.sum()),
        "critical_time": float((end - start)[critical].sum()),
        "rows": [_row(name, start[rows == row], end[rows == row], duration) for row, name in enumerate(names)],
        "longest": _longest(operations, tasks["operation"], end - start),
        "colours": {kind: colour for kind, colour in all_colours.items() if kind in used},
        "drawn": {
            "rows": names,
            "operations": operations,
            "colours": [all_colours[kind] for kind in kinds],
            **{name: column.tolist() for name, column in columns.items()},
            "row": rows.tolist(),
            "critical": critical.astype(np.int64).tolist(),
        },
    }


def _row(name: str, start: NDArray[np.float64], end: NDArray[np.float64], duration: float) -> dict[str, Any]:
    order = np.argsort(start)
    begins, ends = np.append(start[order], duration), np.insert(np.maximum.accumulate(end[order]), 0, 0.0)
    gaps = begins - ends
    longest = int(gaps.argmax())
    busy = float((end - start).sum())
    idle = max(0.0, 1 - busy / duration) if duration else 0.0
    gap, gap_start = float(max(gaps[longest], 0)), float(ends[longest])
    return {"name": name, "tasks": len(start), "busy": busy, "idle": idle, "gap": gap, "gap_start": gap_start}


def _longest(
    operations: list[str], numbers: NDArray[np.int64], durations: NDArray[np.float64]
) -> list[tuple[str, int, float]]:
    counts = np.bincount(numbers, minlength=len(operations))
    times = np.bincount(numbers, weights=durations, minlength=len(operations))
    return [(operations[i], int(counts[i]), float(times[i])) for i in np.argsort(-times)[:_LONGEST] if counts[i]]
