"""The process that a test of limits runs in: its files, and forks of it."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starpullm.checks.place import environment
from starpullm.errors import RuntimeFailureError

NO_FORMAT = "100%d%s "
"""How the names of folders begin: a path that is taken for a format would change."""


def in_fork(function: Callable[[], Any], **variables: str | None) -> Any:
    """Return a function's result, a JSON value, from a fork of this process in which these variables are set.

    Those that are None are removed.

    This process must have a single thread, and must not have opened the library under test.

    Raises
    ------
    RuntimeFailureError
        If the fork ends without a result.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            with environment(**variables), os.fdopen(writer, "w", encoding="utf-8") as stream:
                json.dump(function(), stream)
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) or not text:
        name = getattr(function, "func", function).__name__
        raise RuntimeFailureError(
            f"{name}: a process with {variables} ended with {os.waitstatus_to_exitcode(status)}, expected a result"
        )
    return json.loads(text)


def loaded_library(*names: str) -> ctypes.CDLL:
    """Return a library that the library under test, which must be open, has loaded; its name begins with one of these.

    Raises
    ------
    RuntimeFailureError
        If it has loaded none or several.
    """
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text("utf-8").splitlines() if "/" in line}
    found = [path for path in mapped if Path(path).name.startswith(names)]
    if len(found) != 1:
        raise RuntimeFailureError(f"{' or '.join(names)}: found {len(found)} of them in this process, expected one")
    return ctypes.CDLL(found[0])


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """Let relative paths be relative to this folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
