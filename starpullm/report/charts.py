"""The charts of a page: Bokeh's figures become one script, and Bokeh's own code is put into the page beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bokeh.plotting import figure


@dataclass(frozen=True)
class Charts:
    """What a page with charts contains: scripts for its end, and for each chart the element that stands for it."""

    scripts: str
    elements: Mapping[str, str]


def charts_of(figures: Mapping[str, figure]) -> Charts:
    """Return the HTML of figures by their names."""
    if not figures:
        return Charts("", {})
    from bokeh.embed import components
    from bokeh.resources import Resources

    for plot in figures.values():
        _let_the_page_colour(plot)
    script, elements = components(dict(figures))
    code = Resources(mode="inline", components=["bokeh"]).render_js()
    return Charts(f"{code}\n{script}", dict(elements))


def _let_the_page_colour(plot: figure) -> None:
    """Make backgrounds transparent; the page's script colours lines and texts, for a light and for a dark page."""
    plot.background_fill_alpha = 0
    plot.border_fill_alpha = 0
    plot.outline_line_color = None
    plot.toolbar.logo = None
    for legend in plot.legend:
        legend.update(background_fill_alpha=0, border_line_color=None, location="center")
