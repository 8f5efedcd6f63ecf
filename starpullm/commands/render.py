"""How commands print: results, some of them as JSON, to standard output; progress and errors to standard error.

A printing function whose output nobody reads any more raises BrokenPipeError, at which the command ends.
"""

from __future__ import annotations

import errno
import json
import math
import os
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    import numpy as np


class _Console(Console):
    """Prints text as it is: without markup and emoji, brackets and colons of paths stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **options)

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error again: Rich would exit with 1, which means that bits differ."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


OUT = _Console()
ERR = _Console(stderr=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, on rank 0 only."""
    if not OUT.quiet:
        click.echo(json.dumps(value, indent=2, allow_nan=False))


def json_number(value: float | np.float32) -> float | None:
    """Return a number for JSON, which has neither NaN nor infinity: None, printed as null, stands for them."""
    return float(value) if math.isfinite(value) else None


def progress_bar(*, hidden: bool) -> Progress:
    """Return a progress bar, which is drawn on a terminal only, and not if `hidden`.

    It is drawn on standard error. If that and standard output are terminals, it is drawn on standard output, so that
    what ``OUT`` prints meanwhile appears above it. Errors that appear meanwhile are printed by the bar's ``console``.
    """
    console = OUT if OUT.is_terminal and ERR.is_terminal else ERR
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=hidden or OUT.quiet or not ERR.is_terminal,
    )
