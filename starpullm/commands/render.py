"""How commands print: results to standard output, progress and errors to standard error; tables and JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# Without markup and emoji, so that brackets and colons of paths are printed as they are.
OUT = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
ERR = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print a value as JSON, on rank 0 only."""
    if not OUT.quiet:
        click.echo(json.dumps(value, indent=2, allow_nan=False))


def json_number(value: float | np.float32) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinity: None, printed as null, stands for them."""
    return float(value) if math.isfinite(value) else None


def progress_bar(*, hidden: bool) -> Progress:
    """Return a progress bar on standard error, which is drawn on a terminal only, and not if `hidden`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=ERR,
        disable=hidden or OUT.quiet or not ERR.is_terminal,
    )


TABLE_COLUMNS = 110


def new_table(first: str, *others: str) -> Table:
    """Return a table with a column of names and columns of numbers."""
    table = Table(first, box=None, pad_edge=False)
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print a table, at least `TABLE_COLUMNS` wide: without a terminal, rich would cut it at 80."""
    Console(highlight=False, width=max(OUT.width, TABLE_COLUMNS)).print(table)
