"""How commands print: results, some of them as JSON, to standard output; progress and errors to standard error.

A printing function whose output nobody reads any more raises BrokenPipeError, at which the command ends.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from starpullm.errors import FileError

if TYPE_CHECKING:
    import numpy as np

_SIZES, _SIZE = ("COLUMNS", "LINES"), re.compile("[1-9][0-9]{0,4}")


class _Output(io.FileIO):
    """Standard output or error. A failure of the first is a `FileError`; of a failure of the second nobody can hear."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if self.fileno() == 1 and isinstance(error, BrokenPipeError):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # what buffers have is tried again at the end
            if self.fileno() == 1:
                raise FileError(f"standard output: can't be written: {error.strerror}", error.errno) from error
            return len(data)


def open_output() -> None:
    """Let this process print to `_Output`, where what can't be encoded is replaced, unless a caller has its own.

    `FileError` is raised if standard output is closed.
    """
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # else the next file would have this number, and what libraries print
    if sys.stdout is None:
        raise FileError("standard output: is closed, expected it open: > /dev/null drops what is printed", errno.EBADF)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            raw = io.BufferedWriter(_Output(number, "w", closefd=False))
            encoded = {"encoding": stream.encoding, "errors": "replace", "line_buffering": stream.line_buffering}
            setattr(sys, name, io.TextIOWrapper(raw, **encoded))


class _Console(Console):
    """Prints text as it is: without markup and emoji, brackets and colons of paths stay."""

    def __init__(self, **options: Any) -> None:
        # Rich takes the sizes of a terminal that has none for sizes.
        environment = {
            name: value for name, value in os.environ.items() if name not in _SIZES or _SIZE.fullmatch(value)
        }
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, _environ=environment, **options)

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error again: Rich would exit with 1, which means that bits differ."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


OUT = _Console()
ERR = _Console(stderr=True)


def note(sentence: str) -> None:
    """Print a note to standard error, on rank 0 only."""
    if not OUT.quiet:
        ERR.print(f"note: {sentence}")


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
