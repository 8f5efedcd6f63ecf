"""Ends processes: those of a job, when it is over, and those of a job whose runner is killed before.

The second part is a program of its own, the reaper, which also removes the job's directories. It is started by path and
imports nothing of the package, so that it starts quickly. Processes are found by their environment, whoever has
started them.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

KILL_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_LOOK_SECONDS = 0.05
_START = 18
"""Position of the start time in /proc/PID/stat, after the state."""


@contextmanager
def ended_with_this_process(variable: str, name: str, directories: Sequence[Path] = ()) -> Iterator[None]:
    """Within this context, see to it that no process of a job outlives this process, however this one ends.

    Processes of the job have an environment variable whose value has the name in it, between colons. The directories
    `directories` are removed too. A job that ends within the context, as it should, is none of the reaper's business.
    """
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), variable, name, *map(str, directories)]
    reaper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # It belongs to no job: what ends the job that this process is in must leave it its work.
        env={variable_: value for variable_, value in os.environ.items() if variable_ != variable},
        start_new_session=True,
    )
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            reaper.communicate(b".")


def processes_with(variable: str, name: str) -> list[int]:
    """Return the processes that have an environment variable with a name in its value, between colons."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            environment = os.fsdecode((folder / "environ").read_bytes()).split("\0")
            values = [entry.partition("=")[2] for entry in environment if entry.startswith(f"{variable}=")]
            if any(name in value.split(":") for value in values):
                found.append(int(folder.name))
    return found


def kill_all(find: Callable[[], list[int]], launched: subprocess.Popen[bytes] | None = None) -> list[int]:
    """Kill processes, and those that they start meanwhile; return those that run `KILL_SECONDS` later."""
    deadline = time.monotonic() + KILL_SECONDS
    nothing_seen = 0
    # One search isn't enough: a process may start another one during the search and end before the search finds it.
    # And a process that has just been started has no environment to be found by, for an instant.
    while nothing_seen < 2:
        found = sorted(find(), reverse=True)  # ranks before mpirun, which started them
        nothing_seen = 0 if found else nothing_seen + 1
        if found and time.monotonic() > deadline:
            return found
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if launched is not None:
            launched.kill()
        time.sleep(_PAUSE_SECONDS)
    return []


def process_end(pid: int) -> int:
    """Return a descriptor that is readable once a process has ended, though not yet waited for; the caller closes it.

    `ProcessLookupError` is raised if there is none. Before Linux 5.3, with a Python that was built for an older one, or
    where a container refuses the call, a thread looks for the process.
    """
    with suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    began = start_of(pid)
    if began is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    reader, writer = os.pipe()
    threading.Thread(target=_look_for, args=(pid, began, writer), daemon=True).start()
    return reader


def _look_for(pid: int, began: str, writer: int) -> None:
    while began and start_of(pid) == began:
        time.sleep(_LOOK_SECONDS)
    os.close(writer)


def start_of(pid: int) -> str | None:
    """Return when a process was started, "" if it has ended and was not waited for yet, or None if there is none."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else others[_START]


# ---- In the reaper ----


def _is_dismissed(owner: int) -> bool:
    """Wait for the word that the job is over, or for the end of the process that runs it, which has started this."""
    # A child of the owner's may have inherited its end of the pipe, so the end of the pipe isn't enough.
    with suppress(ProcessLookupError):
        end = process_end(owner)
        if os.getppid() == owner:
            select.select([sys.stdin, end], [], [])
    return bool(select.select([sys.stdin], [], [], 0)[0]) and os.read(sys.stdin.fileno(), 1) != b""


def _main(owner: int, variable: str, name: str, directories: Sequence[str]) -> None:
    if _is_dismissed(owner):
        return
    for directory in directories:  # first, so that nothing is left once the processes have ended
        shutil.rmtree(directory, ignore_errors=True)
    kill_all(lambda: processes_with(variable, name))
    for directory in directories:  # of files that were made meanwhile
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
