"""Runs a program once under a schedule, to its end or to a time limit; none of its processes is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starpullm.errors import InvalidArgumentError
from starpullm.processes.guard import ended_with_this_process
from starpullm.processes.job import JOB_VARIABLE, end_processes
from starpullm.processes.stacks import native_stacks

_KEPT = 1 << 16
"""Bytes that are kept of each output, the last ones: a program may print gigabytes."""
_CHUNK = 1 << 16
_STACK_SECONDS = 10.0
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
    stacks: str
    """Of its threads, if it was killed at the time limit."""

    def __str__(self) -> str:
        if self.status is None:
            return f"had not ended after {self.time_limit:g} s"
        if self.status >= 0:
            return f"ended with exit status {self.status}"
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"was ended by signal {-self.status}"


class _Tail:
    """Reads a stream to its end, and keeps the last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while part := os.read(self._stream.fileno(), _CHUNK):
                self._kept = (self._kept + part)[-_KEPT:]

    def text(self) -> str:
        """Return the last bytes as text."""
        self.thread.join(_DRAIN_SECONDS)
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
    command: Sequence[str], environment: Mapping[str, str], time_limit: float, places: Sequence[Path] = ()
) -> ProgramEnding:
    """Run a program with these variables in addition to this process's, and without standard input.

    If this process is killed meanwhile, the program's processes are killed and the directories `places` are removed.

    Raises
    ------
    InvalidArgumentError
        If it can't be started.
    RuntimeFailureError
        If a process of the program can't be killed.
    """
    path, name = find_program(command[0]), uuid.uuid4().hex
    outer = os.environ.get(JOB_VARIABLE)
    variables = {**os.environ, **environment, JOB_VARIABLE: f"{outer}:{name}" if outer else name}
    with ended_with_this_process(JOB_VARIABLE, name, places):
        return _run([path, *command[1:]], variables, time_limit, name)


def _run(command: Sequence[str], variables: Mapping[str, str], time_limit: float, name: str) -> ProgramEnding:
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        raise InvalidArgumentError(f"{command[0]}: can't be started: {error.strerror}") from error
    assert process.stdout is not None
    assert process.stderr is not None
    tails = _Tail(process.stdout), _Tail(process.stderr)
    status: int | None = None
    stacks = ""
    try:
        status = process.wait(time_limit)
    except subprocess.TimeoutExpired:
        stacks = native_stacks(process.pid, _STACK_SECONDS)
    finally:
        seconds = time.monotonic() - start
        end_processes(name, process)
        process.wait()
    stdout, stderr = (tail.text() for tail in tails)
    process.stdout.close()
    process.stderr.close()
    return ProgramEnding(status, seconds, time_limit, stdout, stderr, stacks)
