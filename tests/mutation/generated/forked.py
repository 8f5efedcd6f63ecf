"""Children of the checks that are forked from a process which has imported everything, instead of started anew.

A child does what ``starpullm.processes.children`` has it do: only its start differs. Its time limits count processor
time, because a busy machine makes no difference to that.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from starpullm.processes import children
from starpullm.processes.endings import Completed, Crashed, ExitedWith, JobEnding, RankReport, Stopped
from starpullm.processes.job import Job

__all__ = ["Clock", "ForkedChild", "forked_or_started"]

WALL_SECONDS = 600.0
"""For a request, whatever the limit on its processor time."""

START_SECONDS = 30
"""Processor time of a child until it is asked for the first time."""

READ_AT_START = frozenset({"LD_PRELOAD", "GLIBC_TUNABLES"})
"""Variables of the environment that the dynamic loader reads, so that a fork which sets them changes nothing."""

_IDLE_SECONDS = 60
"""Seconds in which no thread of a child has wanted to run: it waits for what never comes."""

_POLL_SECONDS = 0.02
_IDLE_POLL_SECONDS = 1.0
_LIBC = ctypes.CDLL(None)


class Clock:
    """Processor time of the children: what the current test has used, and what each of its requests may use."""

    limit: int = 60
    used: float = 0.0

    @classmethod
    def start(cls, limit: int) -> None:
        """Begin a test, each request of which may use this many seconds."""
        cls.limit, cls.used = limit, 0.0


class ForkedChild(children.Child):
    """A child whose process is a fork of this one."""

    _pid = 0

    def ask(self, request: object, time_limit: float) -> children.Reply:
        """Let the child answer; the limit is that of the `Clock`, the given one is for a quiet machine."""
        before = _cpu_seconds(self._pid)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.prlimit(self._pid, resource.RLIMIT_CPU, (int(before) + 1 + Clock.limit, hard))
        try:
            return super().ask(request, max(time_limit, WALL_SECONDS))
        finally:
            Clock.used += _cpu_seconds(self._pid) - before

    def _run(self, job: Job) -> None:
        try:
            self._ending = self._forked(job)
        except Exception as error:
            self._ending = error

    def _forked(self, job: Job) -> JobEnding:
        start = time.monotonic()
        output = Path(tempfile.mkstemp(prefix="child-")[1])
        self._pid = os.fork()
        if self._pid == 0:
            _be_child(job, output)
        idle = Idle(self._pid)
        stopped = False
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                break
            if not stopped and (self._stop.is_set() or idle.too_long()):
                stopped = True
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        number = os.waitstatus_to_exitcode(status)
        text = output.read_text("utf-8", "replace")
        report = RankReport(0, self._pid, number, None, None, stderr=text)
        common = (job, time.monotonic() - start, {0: report}, "", ())
        if stopped:
            return Stopped(*common)
        if number < 0:
            return Crashed(*common, signal=-number, rank=0)
        return ExitedWith(*common, status=number, rank=0) if number else Completed(*common)


class Idle:
    """Watches whether a process sleeps for long, which one that is stopped does not."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._next = time.monotonic() + _IDLE_POLL_SECONDS
        self._asleep = 0

    def too_long(self) -> bool:
        """Return whether all of its threads slept whenever they were looked at; to be called often."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _IDLE_POLL_SECONDS
            states = {_stat(path)[0] for path in self._tasks.glob("*/stat")}
            self._asleep = self._asleep + 1 if states == {"S"} else 0
        return self._asleep >= _IDLE_SECONDS


def forked_or_started(name: str, service: Any, arguments: Any, *, ranks: int = 1, **options: Any) -> children.Child:
    """Return a child: a fork of this process, unless it has several ranks or variables that act when it starts."""
    is_forked = ranks == 1 and not READ_AT_START & (options.get("environment") or {}).keys()
    kind = ForkedChild if is_forked else children.Child
    return kind(name, service, arguments, ranks=ranks, **options)


def _be_child(job: Job, output: Path) -> NoReturn:
    """Serve requests in a process that was just forked, and end as a program does that returns from main."""
    status = 1
    try:
        file = os.open(output, os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.closerange(3, 1024)  # the connections of other children, which would not notice their end
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (START_SECONDS, hard))
        directory = tempfile.mkdtemp(prefix="job-")
        tempfile.tempdir = directory
        os.environ.update({**job.environment, "TMPDIR": directory})
        children._main(json.loads(job.command[-1]))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        _LIBC.exit(status)  # the library's and StarPU's own work at the end of a process
        os._exit(status)


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, 0 if it has ended."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _stat(path: Path) -> list[str]:
    """Return the fields of a stat file from the state on."""
    try:
        return path.read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return ["gone"]
