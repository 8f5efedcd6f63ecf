"""The Gantt chart: what each worker of each rank did when, its idle time, and the critical path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.report.phases import PHASES, phase_of

if TYPE_CHECKING:
    from bokeh.plotting import figure

_ROW_PIXELS = 34
_MARGIN_PIXELS = 130
_MAX_LABELS = 120
"""Names are written into the tasks when at most this many are in view."""


_Bars: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]
"""For each task its row, start, end, and whether it is on the critical path."""


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
    """The chart of a recording, and the table behind it; times in milliseconds."""

    name: str
    configuration: str
    num_tasks: int
    duration: float
    critical_tasks: int
    critical_time: float
    rows: tuple[WorkerRow, ...]
    longest: tuple[tuple[str, int, float], ...]
    """The operations that took the most time: name, number of tasks, time."""

    draw: Callable[[], figure]


def workers_of(recording: Mapping[str, Any]) -> Workers | None:
    """Return the chart of a recording, or None if no worker ran a task."""
    tasks = {name: np.array(values, np.int64) for name, values in recording["tasks"].items()}
    ran = np.flatnonzero(tasks["worker"] >= 0)
    if not len(ran):
        return None
    places = sorted(set(zip(tasks["rank"][ran].tolist(), tasks["worker"][ran].tolist(), strict=True)))
    several_ranks = len({rank for rank, _ in places}) > 1
    names = [f"rank {rank}, worker {worker}" if several_ranks else f"worker {worker}" for rank, worker in places]
    row_of = {place: row for row, place in enumerate(places)}
    rows = np.array([row_of[at] for at in zip(tasks["rank"][ran], tasks["worker"][ran], strict=True)], np.int64)
    start, end = (tasks[name][ran].astype(np.float64) * 1e-6 for name in ("start", "end"))
    critical = np.isin(ran, recording["critical_path"])
    duration = float(end.max())
    return Workers(
        name=recording["name"],
        configuration=recording["configuration"],
        num_tasks=len(ran),
        duration=duration,
        critical_tasks=int(critical.sum()),
        critical_time=float((end - start)[critical].sum()),
        rows=tuple(_row(name, start[rows == row], end[rows == row], duration) for row, name in enumerate(names)),
        longest=_longest(recording["operations"], tasks["operation"][ran], end - start),
        draw=partial(_plot, recording, tasks, ran, (rows, start, end, critical), names, duration),
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


def _plot(
    recording: Mapping[str, Any],
    tasks: Mapping[str, NDArray[np.int64]],
    ran: NDArray[np.intp],
    bars: _Bars,
    names: list[str],
    duration: float,
) -> figure:
    """Draw all tasks with WebGL; a task's colour is its phase, and those of the critical path are black below."""
    from bokeh.models import ColumnDataSource, HoverTool

    rows, start, end, critical = bars
    plot = _rows_of_workers(names, duration)
    operations = np.array(recording["operations"])[tasks["operation"][ran]]
    phases = np.array([phase_of(name) for name in recording["operations"]])[tasks["operation"][ran]]
    renderers, sources = [], []
    for phase, color in PHASES.items():
        chosen = phases == phase
        if not chosen.any():
            continue
        columns = {
            "left": start[chosen],
            "right": end[chosen],
            "top": rows[chosen] - 0.4,
            "bottom": rows[chosen] + 0.4,
            "operation": operations[chosen].tolist(),
            "critical": np.where(critical[chosen], "yes", "no").tolist(),
            **{name: tasks[name][ran][chosen].astype(np.int32) for name in ("step", "sub_batch", "layer")},
        }
        sources.append(ColumnDataSource(columns))
        edges = {name: name for name in ("left", "right", "top", "bottom")}
        look = {"fill_color": color, "line_color": "#000000", "line_alpha": 0.25, "line_width": 0.5}
        renderers.append(plot.quad(**edges, **look, source=sources[-1], legend_label=phase))
    lower_edge = {"top": rows[critical] + 0.2, "bottom": rows[critical] + 0.4, "legend_label": "critical path"}
    plot.quad(left=start[critical], right=end[critical], **lower_edge, fill_color="#000000", line_color=None)
    tooltips = (
        "@operation: step @step, sub-batch @sub_batch, layer @layer; @left{0.000} to @right{0.000} ms; "
        "critical path: @critical"
    )
    plot.add_tools(HoverTool(renderers=renderers, tooltips=tooltips))
    _write_names(plot, sources)
    plot.legend.ncols = 3
    plot.legend.click_policy = "hide"
    plot.add_layout(plot.legend[0], "below")
    return plot


def _rows_of_workers(names: list[str], duration: float) -> figure:
    """Return an empty chart with a grey row for each worker."""
    from bokeh.models import FixedTicker, Range1d
    from bokeh.plotting import figure

    plot = figure(
        height=_MARGIN_PIXELS + _ROW_PIXELS * len(names),
        sizing_mode="stretch_width",
        output_backend="webgl",
        x_range=Range1d(0, duration, bounds=(-0.02 * duration, 1.02 * duration)),
        y_range=Range1d(len(names) - 0.5, -0.5),
        x_axis_label="milliseconds",
        tools="xpan,xwheel_zoom,xbox_zoom,xzoom_in,xzoom_out,reset,save",
        active_scroll=None,
        toolbar_location="above",
    )
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(names))))
    plot.yaxis.major_label_overrides = dict(enumerate(names))
    plot.ygrid.visible = False
    rows = np.arange(len(names))
    edges = {"left": np.zeros(len(names)), "right": np.full(len(names), duration)}
    look = {"fill_color": "#8a939e", "fill_alpha": 0.25, "line_color": None}
    plot.quad(**edges, top=rows - 0.42, bottom=rows + 0.42, **look, legend_label="idle")
    return plot


def _write_names(plot: figure, sources: list[Any]) -> None:
    """Write the names of operations into the tasks once few enough of them are in view."""
    from bokeh.models import ColumnDataSource, CustomJS

    labels = ColumnDataSource({"x": [], "y": [], "text": []})
    plot.text(
        x="x", y="y", text="text", source=labels, text_font_size="11px", text_baseline="middle", text_color="#000000"
    )
    code = """
        const low = range.start, high = range.end, x = [], y = [], text = []
        const pixel = (high - low) / Math.max(plot.inner_width, 1)
        let seen = 0
        for (const source of sources) {
            const {left, right, top, bottom, operation} = source.data
            for (let i = 0; i < left.length && seen <= most; i++) {
                if (right[i] < low || left[i] > high) continue
                seen++
                const begin = Math.max(left[i], low), end = Math.min(right[i], high)
                const room = Math.floor((end - begin) / pixel / 7) - 1
                if (room < 4) continue
                x.push(begin + 4 * pixel)
                y.push((top[i] + bottom[i]) / 2)
                text.push(operation[i].length > room ? operation[i].slice(0, room - 1) + '…' : operation[i])
            }
        }
        labels.data = seen > most ? {x: [], y: [], text: []} : {x, y, text}
    """
    arguments = {"range": plot.x_range, "plot": plot, "sources": sources, "labels": labels, "most": _MAX_LABELS}
    callback = CustomJS(args=arguments, code=code)
    plot.x_range.js_on_change("end", callback)
    plot.js_on_change("inner_width", callback)
