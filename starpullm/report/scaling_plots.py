"""The charts of throughput by cores and by batch size, drawn as far as a report has the measurements for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from starpullm.report.document import Document
from starpullm.report.scaling import KINDS, TITLES, Point, Series, panels
from starpullm.report.throughput import matmul_limit

if TYPE_CHECKING:
    from bokeh.plotting import figure

MAX_PLOTS = 12

# Okabe and Ito's colours, which colour-blind people tell apart, as far as they are seen on a light and a dark page.
_COLOURS = ("#3b97d3", "#e08a1e", "#1aa179", "#b87bb0", "#d55e00", "#8a939e")
_MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "star")
_GREY = "#8a939e"
_MOST_SPEEDS = 8.0
"""The limit is shown if it is no more than this many times the highest speed."""

_SHARED = ("model", "seq_len", "reduction")


@dataclass(frozen=True)
class ScalingPlot:
    """A chart: its title, and the function that draws it."""

    title: str
    draw: Callable[[], figure]


def scaling_plots(document: Document) -> list[ScalingPlot]:
    """Return the charts for which there are at least two points on a line, at most ``MAX_PLOTS``."""
    groups: dict[tuple[object, ...], list[Point]] = {}
    for entry in document["throughput"]:
        if "matmul_flops" in entry and "tokens_per_ms" in entry:
            shared = (*(entry["configuration"][name] for name in _SHARED), entry.get("processor", ""))
            groups.setdefault(shared, []).append(_point(entry))
    return [plot for shared, points in groups.items() for plot in _plots(shared, points)][:MAX_PLOTS]


def _point(entry: Mapping[str, Any]) -> Point:
    place = {name: entry["configuration"][name] for name in ("partition", "ranks", "batch_size")}
    return Point(**place, tokens_per_ms=entry["tokens_per_ms"], limit=matmul_limit(entry))


def _plots(shared: tuple[object, ...], points: Sequence[Point]) -> Iterator[ScalingPlot]:
    model = str(shared[0]).rpartition("/")[2]
    for kind in KINDS:
        for panel, series in panels(kind, points).items():
            if any(len(line) > 1 for line in series.values()):
                yield ScalingPlot(f"{TITLES[kind]}: {model}, {panel}", partial(_draw, kind, series))


def _draw(kind: str, series: Series) -> figure:
    """Draw a line for each label; dashed, what the fastest run on the fewest cores would give; dotted, the limit."""
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool
    from bokeh.plotting import figure

    plot = figure(
        height=320,
        max_width=800,
        sizing_mode="stretch_width",
        x_axis_label="batch size B" if kind == "partitions" else "cores",
        y_axis_label="tokens per millisecond",
        tools="reset,save",
        toolbar_location="above",
    )
    every = [(place, point) for line in series.values() for place, point in line.items()]
    places = sorted({place for place, _ in every})
    limits = [max(point.limit for at, point in every if at == place) for place in places]
    drawn = []
    for number, (label, line) in enumerate(series.items()):
        colour, marker = (choices[number % len(choices)] for choices in (_COLOURS, _MARKERS))
        source = ColumnDataSource(
            {
                "place": list(line),
                "speed": [point.tokens_per_ms for point in line.values()],
                "text": [f"{point.ranks} × {point.partition}, B = {point.batch_size}" for point in line.values()],
            }
        )
        plot.line(x="place", y="speed", source=source, color=colour, line_width=2, legend_label=label)
        look = {"marker": marker, "color": colour, "size": 9, "legend_label": label}
        drawn.append(plot.scatter(x="place", y="speed", source=source, **look))
    if kind != "partitions":
        start = max(point.tokens_per_ms for place, point in every if place == places[0])
        ideal = [start * place / places[0] for place in places]
        plot.line(places, ideal, color=_GREY, line_dash="dashed", legend_label="ideal")
    plot.y_range.start = 0
    label, highest = "limit", max(point.tokens_per_ms for _, point in every)
    if min(limits) > _MOST_SPEEDS * highest:  # lines at the lower edge could not be told apart
        label, plot.y_range.end = f"{label}, far above", 1.5 * highest
    plot.line(places, limits, color=_GREY, line_dash="dotted", line_width=3, legend_label=label)
    plot.xaxis.ticker = FixedTicker(ticks=places)
    plot.add_tools(HoverTool(renderers=drawn, tooltips="@text: @speed tokens/ms"))
    plot.add_layout(plot.legend[0], "below")
    plot.legend.ncols = 2
    return plot
