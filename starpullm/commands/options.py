"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.runtime import DEFAULT_SCHEDULER, MATMULS
from starpullm.trainer import REDUCTIONS

__all__ = [
    "PATH",
    "blas_library_option",
    "json_option",
    "matmul_option",
    "partition_option",
    "reduction_option",
    "scheduler_option",
]

PATH = click.Path(path_type=Path)
partition_option = click.option(
    "--partition", default="1x1", show_default=True, metavar="WxT", help="W workers of T threads each."
)
scheduler_option = click.option(
    "--scheduler", default=DEFAULT_SCHEDULER, show_default=True, metavar="NAME", help="StarPU's scheduler."
)
reduction_option = click.option(
    "--reduction",
    type=click.Choice(REDUCTIONS),
    default=REDUCTIONS[0],
    show_default=True,
    help="Of gradients.",
)
matmul_option = click.option(
    "--matmul",
    type=click.Choice(MATMULS),
    default=MATMULS[0],
    show_default=True,
    help="Who computes matrix products; with a BLAS nothing is strict.",
)
blas_library_option = click.option(
    "--blas-library", metavar="PATH|NAME", help="A CBLAS: path, or name for pkg-config; by default one that is found."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
