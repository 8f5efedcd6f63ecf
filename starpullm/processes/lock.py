"""One StarPU at a time on this machine: its workers poll, and two of them would take the cores from each other.

``isolation.py`` holds the lock while a child works, the pytest plugin while it has a runtime in its own process.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starpullm.errors import FileError

__all__ = ["LOCK_VARIABLE", "machine_lock"]

LOCK_VARIABLE = "STARPULLM_LOCK"
"""Environment variable that names another lock file than the user's own."""

_own = threading.RLock()
_depth = 0
_file = -1


@contextmanager
def machine_lock() -> Iterator[None]:
    """Wait until no other process of this user holds the lock, and hold it; may be nested.

    The system gives it back when its holder ends, however that ends.

    Raises
    ------
    FileError
        If there can't be a lock file.
    """
    global _depth, _file  # noqa: PLW0603 - a process has the lock or has it not
    with _own:
        if _depth == 0:
            _file = _open(lock_path())
            fcntl.flock(_file, fcntl.LOCK_EX)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                os.close(_file)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FileError(
            f"{path}: can't be opened as a lock: {error.strerror}; {LOCK_VARIABLE} may name another file",
            error.errno,
            str(path),
        ) from error


def lock_path() -> Path:
    """Return the file that is locked, in the user's run directory if there is one."""
    chosen = os.environ.get(LOCK_VARIABLE)
    if chosen:
        return Path(chosen)
    directory = os.environ.get("XDG_RUNTIME_DIR")
    if directory and os.access(directory, os.W_OK):
        return Path(directory, "starpullm.lock")
    return Path(f"/tmp/starpullm-{os.getuid()}.lock")  # whatever TMPDIR is: jobs have their own
