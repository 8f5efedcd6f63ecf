"""The charts of scaling, drawn by matplotlib as SVG in the page's own colours."""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from starpullm.report.document import Document
from starpullm.report.throughput import matmul_limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 12
"""Charts, at most."""

# Okabe and Ito's colours, which colour-blind people tell apart, as far as they are seen on a light and a dark page.
_COLOURS = ("#3b97d3", "#e08a1e", "#1aa179", "#b87bb0", "#d55e00", "#8a939e")
_GREY = _COLOURS[5]
_MARKERS = "os^Dv*"

_OF_PAGE = {"#010203": "currentColor", "#010204": "var(--line)"}
"""Colours that are drawn, and what the page replaces them by: a light and a dark page have others."""

_TEXT, _LINE = _OF_PAGE
_STYLE: Any = {
    "axes.edgecolor": _TEXT,
    "axes.facecolor": "none",
    "axes.labelcolor": _TEXT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 10.0,
    "grid.color": _LINE,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "text.color": _TEXT,
    "text.parse_math": False,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}

_FAR = 8.0
"""The limit is drawn if it is no more than this many times the highest speed."""

_SHARED = ("model", "seq_len", "reduction")

_SCALING = {"strong": "Strong scaling", "weak": "Weak scaling", "partitions": "Partitions by batch size"}


class Point(NamedTuple):
    """A measured configuration; ``limit`` is the speed of its matmuls alone, both in tokens per millisecond."""

    partition: str
    ranks: int
    batch_size: int
    """Sequences of all ranks together."""

    tokens_per_ms: float
    limit: float

    @property
    def cores(self) -> int:
        """The cores of all ranks."""
        return self.ranks * math.prod(map(int, self.partition.split("x")))


Series: TypeAlias = dict[str, dict[int, Point]]
"""The points with a label, by number of cores or by batch size."""


def charts_of(document: Document) -> list[tuple[str, str]]:
    """Return the charts for which there are data, each with its title and as SVG.

    A line has at least two points; those of one chart have model, length and processor in common.
    """
    groups: defaultdict[tuple[str, ...], list[Point]] = defaultdict(list)
    for entry in document["throughput"]:
        if "matmul_flops" in entry and "tokens_per_ms" in entry:
            of = entry["configuration"]
            shared = (*(str(of[name]) for name in _SHARED), entry.get("processor", ""))
            point = Point(of["partition"], of["ranks"], of["batch_size"], entry["tokens_per_ms"], matmul_limit(entry))
            groups[shared].append(point)
    drawn = [
        (f"{title}: {shared[0].rpartition('/')[2]}, {panel}", kind, series)
        for shared, points in groups.items()
        for kind, title in _SCALING.items()
        for panel, series in panels(kind, points).items()
        if any(len(line) > 1 for line in series.values())
    ]
    return [
        (title, _svg(f"scaling-{number}", kind, series)) for number, (title, kind, series) in enumerate(drawn[:_MOST])
    ]


def _svg(name: str, kind: str, series: Series) -> str:
    """Return a chart as an element of a page, whose ids begin with its name."""
    from matplotlib import rc_context

    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context(_STYLE):
        _lines(kind, series).savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'( id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    for drawn, of_page in _OF_PAGE.items():
        text = text.replace(drawn, of_page)
    return text


def panels(kind: str, points: Sequence[Point]) -> dict[str, Series]:
    """Return the series of each panel by its title, the smallest batch or number of cores first.

    ``"strong"`` is by cores, with a panel for each batch size. ``"weak"`` is by cores, with a panel for each batch size
    per core. ``"partitions"`` is by batch size, with a panel for each number of cores. A line by cores has at least two
    points. If several points are at the same place, the fastest counts.
    """
    found: defaultdict[int, defaultdict[str, dict[int, Point]]] = defaultdict(lambda: defaultdict(dict))
    for point in sorted(points, key=lambda of: of.tokens_per_ms):
        if kind == "partitions":
            ranks = f"{point.ranks} ranks of " if point.ranks > 1 else ""
            found[point.cores][f"{ranks}{point.partition}"][point.batch_size] = point
            continue
        panel, rest = divmod(point.batch_size, 1 if kind == "strong" else point.cores)
        for label in [] if rest else _ways_to_add_cores(point):
            found[panel][label][point.cores] = point
    least = 1 if kind == "partitions" else 2
    titles = {"strong": "B = {}", "weak": "B = {} per core", "partitions": "{} cores"}
    panels = {
        "1 core" if kind == "partitions" and panel == 1 else titles[kind].format(panel): {
            label: dict(sorted(line.items())) for label, line in sorted(series.items()) if len(line) >= least
        }
        for panel, series in sorted(found.items())
    }
    return {title: series for title, series in panels.items() if series}


def _ways_to_add_cores(point: Point) -> list[str]:
    """Return the labels of the lines that a point is on; along a line, cores are added in one way."""
    if point.ranks > 1:
        return [f"ranks of {point.partition}"]
    workers, _, threads = point.partition.partition("x")
    lines = [f"ranks of {point.partition}", f"workers of {threads} thread{'s' * (threads != '1')}"]
    return [*lines, "one worker"] if workers == "1" else lines


def _lines(kind: str, series: Series) -> Figure:
    """Draw a line for each label; dashed, what the fastest run on the fewest cores would give; dotted, the limit."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    every = [(place, point) for line in series.values() for place, point in line.items()]
    places = sorted({place for place, _ in every})
    limits = [max(point.limit for at, point in every if at == place) for place in places]
    highest = max(point.tokens_per_ms for _, point in every)
    for number, (label, line) in enumerate(series.items()):
        speeds = [point.tokens_per_ms for point in line.values()]
        colour, marker = (choices[number % len(choices)] for choices in (_COLOURS, _MARKERS))
        axes.plot(list(line), speeds, color=colour, marker=marker, label=label)
    if kind != "partitions":
        start = max(point.tokens_per_ms for place, point in every if place == places[0])
        axes.plot(places, [start * place / places[0] for place in places], "--", color=_GREY, label="ideal")
    is_far = min(limits) > _FAR * highest  # the lines could not be told apart
    axes.plot(places, limits, ":", color=_GREY, linewidth=3, label="limit, far above" if is_far else "limit")
    axes.set_ylim(0, 1.5 * highest if is_far else None)
    axes.set(xlabel="batch size B" if kind == "partitions" else "cores", ylabel="tokens per millisecond")
    axes.set_xticks(places)
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
