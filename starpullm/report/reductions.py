"""The errors of gradients as fractions of their bounds, tensor by tensor, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from starpullm.report.document import Document

if TYPE_CHECKING:
    from bokeh.plotting import figure

_LOWEST, _HIGHEST = 1e-4, 1e2
"""The range of the scale: an exact gradient is drawn at the lower end, one that isn't finite at the upper end."""

_PASSED, _FAILED = "#3b97d3", "#d55e00"


@dataclass(frozen=True)
class TensorRow:
    """All gradients of one parameter: the largest fraction of the bound, and where it is."""

    tensor: str
    gradients: int
    largest: float
    beyond: int
    element: str
    test: str


@dataclass(frozen=True)
class Reductions:
    """The picture, and the table behind it."""

    rows: tuple[TensorRow, ...]
    draw: Callable[[], figure]


def reductions_of(document: Document) -> Reductions | None:
    """Return the errors of all checked gradients, or None if no gradient was checked."""
    found: dict[str, list[tuple[float, Any, str]]] = {}
    for test, entry in _errors(document):
        found.setdefault(entry["tensor"].partition("[")[0], []).append((float(entry["ratio"]), entry, test))
    if not found:
        return None
    rows = []
    for tensor, errors in found.items():
        ratio, worst, test = max(errors, key=lambda error: error[0])
        element = f"{worst['tensor']}{worst['index']}: {worst['actual']}, expected {worst['expected']}"
        beyond = sum(error[0] > 1 for error in errors)
        rows.append(TensorRow(tensor, len(errors), ratio, beyond, element, test))
    return Reductions(tuple(rows), partial(_plot, found))


def _errors(document: Document) -> Iterator[tuple[str, Any]]:
    for test in document["tests"]:
        for result in test["results"]:
            if result["name"] == "gradient error":
                yield from ((test["test"], entry) for entry in result["tensors"])


def _plot(found: dict[str, list[tuple[float, Any, str]]]) -> figure:
    from bokeh.models import ColumnDataSource, HoverTool, Span
    from bokeh.plotting import figure
    from bokeh.transform import jitter

    names = list(found)
    plot = figure(
        height=120 + 22 * len(names),
        sizing_mode="stretch_width",
        output_backend="webgl",
        x_axis_type="log",
        x_range=(_LOWEST / 2, _HIGHEST * 2),
        y_range=names[::-1],
        x_axis_label="error ÷ bound",
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        active_scroll=None,
        toolbar_location="above",
    )
    renderers = []
    for failed, color, marker, label in (
        (False, _PASSED, "circle", "within its bound"),
        (True, _FAILED, "x", "beyond its bound"),
    ):
        chosen = [(name, *error) for name, errors in found.items() for error in errors if (error[0] > 1) == failed]
        if not chosen:
            continue
        source = ColumnDataSource(
            {
                "name": [name for name, _, _, _ in chosen],
                "drawn": [_drawn(ratio) for _, ratio, _, _ in chosen],
                "ratio": [f"{ratio:.3g}" for _, ratio, _, _ in chosen],
                "tensor": [entry["tensor"] for _, _, entry, _ in chosen],
                "test": [test.rpartition("::")[2] for _, _, _, test in chosen],
            }
        )
        y = jitter("name", width=0.5, range=plot.y_range, distribution="uniform")
        renderers.append(
            plot.scatter(
                x="drawn", y=y, source=source, marker=marker, size=7, color=color, fill_alpha=0.4, legend_label=label
            )
        )
    plot.add_layout(Span(location=1, dimension="height", line_color=_FAILED, line_width=2, line_dash="dashed"))
    plot.add_tools(HoverTool(renderers=renderers, tooltips="@tensor: @ratio of its bound<br>@test"))
    plot.add_layout(plot.legend[0], "below")
    plot.legend.orientation = "horizontal"
    return plot


def _drawn(ratio: float) -> float:
    return min(max(ratio, _LOWEST), _HIGHEST) if math.isfinite(ratio) else _HIGHEST
