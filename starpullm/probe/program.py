"""Runs a program once under a schedule, to its end or to a time limit; none of its processes is left."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starpullm.errors import InvalidArgumentError
from starpullm.probe.surroundings import standard_input
from starpullm.probe.watch import ProcessWatch
from starpullm.processes.endings import signal_name
from starpullm.processes.job import JOB_VARIABLE, job_variable, launched, new_job_directories
from starpullm.processes.mpirun import mpi_parameters, outside_of_jobs
from starpullm.processes.stacks import native_stacks

_KEPT = 1 << 16
"""Bytes that are kept of each output, the last ones: a program may print gigabytes."""
_CHUNK = 1 << 16
_STACK_SECONDS = 10.0
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK_FOR_PERSONALITY = 0xFFFFFFFF
_DRAIN_SECONDS = 5.0


@dataclass(frozen=True)
class ProgramEnding:
    """How a program ended: its status, negative for a signal; ``status`` is None if it was killed at the time limit.

    ``stdout`` and ``stderr`` are the ends of its output; ``time_limit`` is in seconds.
    """

    status: int | None
    seconds: float
    time_limit: float
    stdout: str
    stderr: str
    stacks: Mapping[int, str]
    """Of the threads of its processes by their number, if it was killed at the time limit."""
    ended: Sequence[frozenset[int]]
    """Processes with a log that ended before they were killed, in this order; those seen at once are one set."""

    @property
    def words(self) -> Counter[str]:
        """What it printed, in any order, as tasks print when they run; nothing if more was printed than is kept."""
        return Counter(self.stdout.split() if len(self.stdout.encode()) < _KEPT else ())

    def __str__(self) -> str:
        if self.status is None:
            return f"had not ended after {self.time_limit:g} s"
        if self.status >= 0:
            return f"ended with exit status {self.status}"
        return f"was ended by {signal_name(-self.status)}"


class _Tail:
    """Reads a stream to its end, and keeps the last bytes."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream = stream
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while part := os.read(self._stream.fileno(), _CHUNK):
                self._kept = (self._kept + part)[-_KEPT:]

    def text(self) -> str:
        """Return the last bytes as text, and close the stream."""
        self._thread.join(_DRAIN_SECONDS)
        self._stream.close()
        return self._kept.decode(errors="replace")


def find_program(name: str) -> str:
    """Return the path of a program, found as shells do; an `InvalidArgumentError` is raised if there is none."""
    path = shutil.which(name)
    if path is None:
        what = "there is no such file and no such command"
        if Path(name).exists():
            what = "is a folder" if Path(name).is_dir() else "is not executable"
        raise InvalidArgumentError(f"{name}: {what}, expected a program")
    return path


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    time_limit: float,
    logs: Path,
    places: Sequence[Path] = (),
) -> ProgramEnding:
    """Run a program with these variables in addition to this process's.

    It may be a launcher of ranks, such as mpirun. The processes that write logs into the folder ``logs`` are watched,
    and runs with logs beside each other get the same `standard_input`.
    If this process is killed meanwhile, the program's processes are killed and the directories `places` are removed.
    """
    path = find_program(command[0])
    start = time.monotonic()
    with ExitStack() as stack:
        directories = stack.enter_context(new_job_directories(places))
        variables = {
            **outside_of_jobs(os.environ, on_this_machine=False),
            **environment,
            **mpi_parameters(directories.directory, directories.memory),
            "OMPI_MCA_odls_base_sigkill_timeout": "1",  # where ranks were is in their logs
            JOB_VARIABLE: job_variable(os.environ, directories.name),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        pipes["stdin"] = stack.enter_context(standard_input(logs.parent / "stdin", variables))
        try:
            with without_random_addresses():
                process = stack.enter_context(launched([path, *command[1:]], directories, env=variables, **pipes))
        except OSError as error:
            raise InvalidArgumentError(f"{path}: can't be started: {error.strerror}") from error
        watch = stack.enter_context(closing(ProcessWatch(logs)))
        tails = _Tail(process.stdout), _Tail(process.stderr)
        stacks: dict[int, str] = {}
        limit = time.monotonic() + time_limit
        while (status := process.poll()) is None and time.monotonic() < limit:
            watch.look()
        if status is None:
            stacks = watch.stacks(_STACK_SECONDS) or {process.pid: native_stacks(process.pid, _STACK_SECONDS)}
        seconds = time.monotonic() - start
        watch.look(0)
    stdout, stderr = (tail.text() for tail in tails)
    return ProgramEnding(status, seconds, time_limit, stdout, stderr, stacks, watch.ended)


@contextmanager
def without_random_addresses() -> Iterator[None]:
    """Have processes that this thread starts get the same addresses each time: they are arguments of tasks, and data.

    Where a container forbids it, addresses stay random.
    """
    personality = ctypes.CDLL(None).personality
    personality.argtypes = [ctypes.c_ulong]
    before = personality(_ASK_FOR_PERSONALITY)
    if before < 0 or personality(before | _ADDR_NO_RANDOMIZE) < 0:
        yield
        return
    try:
        yield
    finally:
        personality(before)
