"""Throughput beside the machine's limit, and the stored runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from starpullm.report.document import Document

if TYPE_CHECKING:
    from bokeh.plotting import figure

_SPEED, _LIMIT = "#3b97d3", "#8a939e"


@dataclass(frozen=True)
class SpeedRow:
    """A measured configuration; ``limit`` is the speed of a step whose matmuls alone use all that the cores can do.

    ``fraction`` is the part of the limit that was reached, in words; a range if measurements of the limit differ.
    """

    name: str
    tokens_per_ms: float | None
    limit: float | None
    fraction: str
    failure: str


@dataclass(frozen=True)
class History:
    """The stored runs of one configuration, the oldest first."""

    name: str
    runs: tuple[Mapping[str, Any], ...]
    draw: Callable[[], figure]


def speeds_of(document: Document) -> list[SpeedRow]:
    """Return a row for each measurement."""
    return [_speed_row(entry) for entry in document["throughput"]]


def _speed_row(entry: Mapping[str, Any]) -> SpeedRow:
    name = _name(entry["configuration"])
    if "failure" in entry:
        return SpeedRow(name, None, None, "", entry["failure"])
    if "contenders" in entry:
        strict = entry["contenders"][0]["tokens_per_ms"]["median"]
        others = ", ".join(
            f"{other['name']} {other['tokens_per_ms']['median']:.4g}" for other in entry["contenders"][1:]
        )
        return SpeedRow(f"{name}; beside it: {others}", strict, None, "", "")
    limit = matmul_limit(entry) if "matmul_flops" in entry else None
    return SpeedRow(name, entry["tokens_per_ms"], limit, _fraction(entry), "")


def matmul_limit(entry: Mapping[str, Any]) -> float:
    """Return the tokens per millisecond of a step that consists of its matmuls alone, at the processor's limit."""
    tokens: int = entry["configuration"]["batch_size"] * entry["configuration"]["seq_len"]
    return float(tokens * entry["matmul_limit_gflops"] * 1e6 / entry["matmul_flops"])


def _fraction(entry: Mapping[str, Any]) -> str:
    if "matmul_limit_range" in entry:
        low, high = (f"{100 * entry['matmul_gflops'] / limit:.1f}" for limit in reversed(entry["matmul_limit_range"]))
        return f"{low} %" if low == high else f"{low} to {high} %"
    return f"{100 * entry['fraction_of_limit']:.1f} %" if "fraction_of_limit" in entry else "–"


def _name(configuration: Mapping[str, Any]) -> str:
    ranks = f", {configuration['ranks']} ranks" if configuration["ranks"] > 1 else ""
    return (
        f"{configuration['model'].rpartition('/')[2]}, B = {configuration['batch_size']}, {configuration['partition']}"
        f"{ranks}, sub-batches {configuration['sub_batches']}, {configuration['reduction']}"
    )


def speed_plot(rows: Sequence[SpeedRow]) -> figure | None:
    """Draw a bar for each measured configuration, and a mark at its limit."""
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure

    measured = [row for row in rows if row.tokens_per_ms is not None]
    if not measured:
        return None
    names = [f"{number}" for number in range(1, len(measured) + 1)]
    plot = figure(
        height=110 + 30 * len(measured),
        sizing_mode="stretch_width",
        y_range=names[::-1],
        x_axis_label="tokens per millisecond",
        y_axis_label="line of the table",
        tools="reset,save",
        toolbar_location="above",
    )
    source = ColumnDataSource(
        {
            "name": names,
            "speed": [row.tokens_per_ms for row in measured],
            "limit": [row.limit if row.limit is not None else math.nan for row in measured],
            "text": [row.name for row in measured],
        }
    )
    bars = plot.hbar(y="name", right="speed", height=0.6, source=source, color=_SPEED, legend_label="measured")
    if any(row.limit is not None for row in measured):
        plot.scatter(
            x="limit",
            y="name",
            source=source,
            marker="dash",
            angle=math.pi / 2,
            size=22,
            line_width=4,
            color=_LIMIT,
            legend_label="limit of the matmuls",
        )
    plot.x_range.start = 0
    plot.add_tools(HoverTool(renderers=[bars], tooltips="@text: @speed tokens/ms, limit @limit"))
    plot.add_layout(plot.legend[0], "below")
    plot.legend.orientation = "horizontal"
    return plot


def histories_of(document: Document) -> list[History]:
    """Return the stored runs by configuration."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for run in document["history"]:
        by_name.setdefault(run["name"], []).append(run)
    return [History(name, tuple(runs), partial(_history_plot, runs)) for name, runs in by_name.items()]


def _history_plot(runs: Sequence[Mapping[str, Any]]) -> figure:
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure

    numbers = list(range(1, len(runs) + 1))
    plot = figure(
        height=260,
        sizing_mode="stretch_width",
        x_axis_label="stored run, the oldest first",
        y_axis_label="fraction of the limit",
        tools="xpan,xbox_zoom,reset,save",
        toolbar_location="above",
    )
    source = ColumnDataSource(
        {
            "number": numbers,
            "fraction": [run["fraction_of_limit"] for run in runs],
            "time": [run["time"] for run in runs],
            "commit": [run["commit"][:10] for run in runs],
        }
    )
    plot.line(x="number", y="fraction", source=source, color=_SPEED, line_width=1)
    points = plot.scatter(x="number", y="fraction", source=source, size=8, color=_SPEED)
    plot.y_range.start = 0
    plot.add_tools(HoverTool(renderers=[points], tooltips="@time, @commit: @fraction"))
    return plot
