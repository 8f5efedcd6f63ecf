"""Ends a job's processes, and removes its directories, if the process that runs the job is killed before.

The part that does so is a program of its own. It is started by path and imports nothing of the package, so that it
starts quickly. It finds the processes by their environment, also those that mpirun or another process has started.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_KILL_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_OWNER_SECONDS = 0.2
"""The guard is a child of the process that runs the job, so that another parent tells the end of that process."""


@contextmanager
def ended_with_this_process(variable: str, name: str, places: Sequence[Path] = ()) -> Iterator[None]:
    """Within this context, see to it that no process of a job outlives this process, however this one ends.

    Processes of the job have an environment variable whose value has the name in it, between colons. The directories
    `places` are removed too. A job that ends within the context, as it should, is none of the guard's business.
    """
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), variable, name, *map(str, places)]
    guard = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to this process's group must not end the guard
    )
    try:
        yield
    finally:
        with suppress(BrokenPipeError):
            guard.communicate(b".")


# ---- In the guard ----


def _is_dismissed(owner: int) -> bool:
    """Wait for the word that the job is over, or for the end of the process that runs it."""
    # A child of the owner's may have inherited its end of the pipe, so the end of the pipe isn't enough.
    while os.getppid() == owner and not select.select([sys.stdin], [], [], _OWNER_SECONDS)[0]:
        pass
    return bool(select.select([sys.stdin], [], [], 0)[0]) and os.read(sys.stdin.fileno(), 1) != b""


def _processes_of(variable: str, name: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            environment = os.fsdecode((folder / "environ").read_bytes()).split("\0")
            values = [entry.partition("=")[2] for entry in environment if entry.startswith(f"{variable}=")]
            if any(name in value.split(":") for value in values):
                found.append(int(folder.name))
    return found


def _main(owner: int, variable: str, name: str, places: Sequence[str]) -> None:
    if _is_dismissed(owner):
        return
    deadline = time.monotonic() + _KILL_SECONDS
    nothing_seen = 0
    # Twice: a process may start another one during the search, and has no environment to be found by for an instant.
    while nothing_seen < 2 and time.monotonic() < deadline:
        found = _processes_of(variable, name)
        nothing_seen = 0 if found else nothing_seen + 1
        for pid in sorted(found, reverse=True):  # ranks before mpirun, which started them
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
