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

__all__ = ["ERR", "OUT", "json_number", "print_json", "print_table", "progress_bar"]

# Results go to standard output; progress and errors to standard error.
OUT = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, on rank 0 only."""
    if not OUT.quiet:
        click.echo(json.dumps(value, indent=2, allow_nan=False))


def json_number(value: float | np.float32) -> float | None:
    """JSON has no NaN and no infinity: null stands for them."""
    return float(value) if math.isfinite(value) else None


def progress_bar(*, hidden: bool) -> Progress:
    """Return a bar on standard error, which isn't drawn if it is hidden or that is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=ERR,
        disable=hidden or OUT.quiet or not ERR.is_terminal,
    )


TABLE_COLUMNS = 110


def print_table(table: Table) -> None:
    """Print a table that isn't cut where no terminal says how wide it is."""
    Console(highlight=False, width=max(OUT.width, TABLE_COLUMNS)).print(table)
