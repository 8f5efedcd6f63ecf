"""A lock that lets only one StarPU run at a time: its workers poll, so two would take the cores from each other."""

from __future__ import annotations

import fcntl
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from starpullm.errors import FileError, StateError

LOCK_VARIABLE = "STARPULLM_LOCK"
"""Environment variable with the path of a lock file to use instead of the user's own."""

_HOLDER_BYTES = 200
_POLL_SECONDS = 0.02

_own = threading.RLock()
_depth = 0
_file = -1


@contextmanager
def machine_lock(say: Callable[[str], object] = lambda _: None, limit: float = math.inf) -> Iterator[None]:
    """Wait until no other process of this user holds the lock, and hold it; may be nested.

    If another process holds it, `say` is called with a sentence that names that process; after `limit` seconds, a
    `StateError` is raised. The kernel releases the lock when the process ends, also after a crash.
    """
    global _depth, _file  # noqa: PLW0603 - the lock belongs to the whole process
    with _own:
        if _depth == 0:
            _file = _acquire(say, limit)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
            if _depth == 0:
                with suppress(OSError):  # there are no locks
                    fcntl.flock(_file, fcntl.LOCK_UN)  # a forked child may have the same open file
                os.close(_file)


def _acquire(say: Callable[[str], object], limit: float) -> int:
    """Return the locked file, in which is who holds it."""
    file = _open(lock_path())
    try:
        if not _locks(file):
            say(f"waiting for process {_holder(file)}, which uses the machine (lock {lock_path()})")
            deadline = time.monotonic() + limit
            while not _locks(file):  # flock() itself has no limit
                if time.monotonic() > deadline:
                    raise StateError(
                        f"{lock_path()}: process {_holder(file)}, still uses the machine after {limit:g} s, expected "
                        f"it to have ended; {LOCK_VARIABLE} may name another lock"
                    )
                time.sleep(_POLL_SECONDS)
        with suppress(OSError):  # a full disk: the text is for those who wait, the lock holds without it
            os.ftruncate(file, 0)
            command = " ".join(" ".join(sys.orig_argv).split())  # in one line
            os.pwrite(file, f"{os.getpid()}, {command}".encode(errors="replace")[:_HOLDER_BYTES], 0)
    except BaseException:
        os.close(file)
        raise
    return file


def _locks(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # its file system has no locks, or a container refuses them
        return True
    return True


def _holder(file: int) -> str:
    return os.pread(file, _HOLDER_BYTES, 0).decode(errors="replace") or "another one"


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
