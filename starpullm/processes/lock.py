"""A lock that lets only one StarPU run at a time: its workers poll, so two would take the cores from each other."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starpullm.errors import FileError

LOCK_VARIABLE = "STARPULLM_LOCK"
"""Environment variable with the path of a lock file to use instead of the user's own."""

_own = threading.RLock()
_depth = 0
_file = -1


@contextmanager
def machine_lock() -> Iterator[None]:
    """Wait until no other process of this user holds the lock, and hold it; may be nested.

    The kernel releases the lock when the process ends, also after a crash.

    Raises
    ------
    FileError
        If the lock file can't be opened.
    """
    global _depth, _file  # noqa: PLW0603 - the lock belongs to the whole process
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
    """Return the path of the lock file; it is in the user's run directory if there is one."""
    chosen = os.environ.get(LOCK_VARIABLE)
    if chosen:
        return Path(chosen)
    directory = os.environ.get("XDG_RUNTIME_DIR")
    if directory and os.access(directory, os.W_OK):
        return Path(directory, "starpullm.lock")
    return Path(f"/tmp/starpullm-{os.getuid()}.lock")  # not TMPDIR, which each job has of its own
