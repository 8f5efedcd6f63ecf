"""``starpullm plot``: draws the results of ``starpullm bench --json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import OUT
from starpullm.speed import plots


@click.command("plot", epilog=options.example("starpullm plot weak bench.json --output weak.svg"))
@click.argument("kind", type=click.Choice(plots.KINDS))
@click.argument("results", nargs=-1, required=True, metavar="RESULTS.json...", type=options.PATH)
@click.option(
    "--output",
    required=True,
    type=options.PATH,
    metavar="FILE",
    help="Picture to write; its suffix is png, svg or pdf.",
)
def command(kind: str, results: Sequence[Path], output: Path) -> None:
    """Draw the results of `bench --json`.

    RESULTS.json are files with its output. strong: tokens per millisecond by number of cores, with a constant batch.
    weak: the same with a constant batch per core. partitions: tokens per millisecond of each partition by batch size.
    The dotted line is the limit: the speed of a step whose matmuls alone use all that the cores can do.
    """
    plots.save(plots.draw(kind, plots.read_results(results)), output)
    OUT.print(f"saved {output}")
