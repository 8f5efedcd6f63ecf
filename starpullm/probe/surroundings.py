"""What is there once, though a probe runs a program several times: standard input, pipes, files that runs change."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path

from starpullm.errors import InvalidArgumentError

_OPEN = Path("/proc/self/fd/0")
_LISTED = 5


def check_arguments(command: Sequence[str]) -> None:
    """Refuse arguments that name what one run alone could read: a pipe, or an open file of this process."""
    for argument in command[1:]:
        path = argument.rpartition("=")[2]
        with suppress(OSError):  # a text may be too long for a path
            if Path(path).is_fifo() or re.fullmatch(r"/(dev|proc/self)/fd/([3-9]|\d\d+)", path):
                raise InvalidArgumentError(
                    f"{argument}: is a pipe or an open file, which one run alone could read, expected a file for all"
                )


def no_input() -> str:
    """Return a sentence if standard input is a terminal, of which runs get nothing; otherwise an empty text."""
    if sys.__stdin__ is None or not os.isatty(0):
        return ""
    return "standard input is a terminal, from which no run reads: < FILE gives the same input to each run"


@contextmanager
def standard_input(kept: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Give a run this process's standard input, the same each time: a file is opened again, from where it is.

    Of anything else the first run gets as much as it reads, and what it got is kept in a file for the others.
    """
    if sys.__stdin__ is None or no_input():
        yield subprocess.DEVNULL
    elif kept.exists() or (stat.S_ISREG(os.fstat(0).st_mode) and os.access(_OPEN, os.R_OK)):
        start = 0 if kept.exists() else os.lseek(0, 0, os.SEEK_CUR)
        with (kept if kept.exists() else _OPEN).open("rb", 0) as file:
            file.seek(start)
            yield file.fileno()
    else:
        source, sink = os.pipe()
        with kept.open("wb", 0) as file:  # tee writes its own output first: nothing is read that isn't kept
            tee = subprocess.Popen(["tee", f"/dev/fd/{sink}"], stdout=file, pass_fds=[sink], env=environment)
        os.close(sink)
        try:
            yield source
        finally:
            os.close(source)
            tee.kill()
            tee.wait()


class Files:
    """Files that runs may change: in this folder, in the folders in it, and among the arguments of a program."""

    def __init__(self, command: Sequence[str], logs: Path) -> None:
        self._arguments, self._logs = command[1:], logs.resolve()
        self._before = self._changed()

    def _changed(self) -> dict[str, int]:
        """Return when each was changed."""
        found = {}
        # Unlike that of pathlib, it passes over folders that other programs remove meanwhile.
        here = (name for pattern in ("*", "*/*") for name in glob(pattern, include_hidden=True))  # noqa: PTH207
        for path in map(Path, (*here, *self._arguments)):
            with suppress(OSError):
                if not path.resolve().is_relative_to(self._logs):
                    found[str(path)] = path.lstat().st_mtime_ns
        return found

    def leavings(self) -> str:
        """Return a sentence about those that runs have changed; an empty text if they have changed none."""
        before, now = self._before, self._changed()
        names = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
        if not names:
            return ""
        return (
            f"runs have changed {', '.join(names[:_LISTED])} in {Path.cwd()}, so that each run finds what the last "
            "one has left: remove them first, as by sh -c 'rm -f FILE; exec PROGRAM'"
        )
