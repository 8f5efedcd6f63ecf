"""How commands print: results, some of them as JSON, to standard output; progress and errors to standard error."""

from __future__ import annotations

import json
import math
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
