"""``starpullm plot``: draws what bench printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from starpullm.commands.options import PATH
from starpullm.commands.render import OUT
from starpullm.speed import plots

__all__ = ["plot_command"]


@click.command("plot")
@click.argument("kind", type=click.Choice(plots.KINDS))
@click.argument("results", nargs=-1, required=True, metavar="RESULTS.json...", type=PATH)
@click.option("--output", required=True, type=PATH, help="Picture, in the format that its suffix names: png, svg, pdf.")
def plot_command(kind: str, results: Sequence[Path], output: Path) -> None:
    """Draw what `bench --json` printed: strong or weak scaling, or partitions by batch size.

    strong: tokens per millisecond by cores, with the batch the same. weak: with the batch per core the same.
    partitions: by batch size. The dotted line is where the matmuls alone would take all that the cores can do.
    """
    plots.save(plots.draw(kind, plots.read_results(results)), output)
    OUT.print(f"saved {output}", markup=False)
