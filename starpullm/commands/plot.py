"""``starpullm plot``: plots of the output of ``starpullm bench --json``."""

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
@click.option("--output", required=True, type=PATH, help="File of the plot; its suffix says the format: png, svg, pdf.")
def plot_command(kind: str, results: Sequence[Path], output: Path) -> None:
    """Draw the output of `bench --json`: strong or weak scaling, or partitions by batch size.

    strong: tokens per millisecond by cores, for one batch size. weak: for one batch size per core. partitions: by batch
    size. The dotted line is the speed of the matmuls alone at the machine's limit.
    """
    plots.save(plots.draw(kind, plots.read_results(results)), output)
    OUT.print(f"saved {output}", markup=False)
