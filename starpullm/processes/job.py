"""Runs a command to its end, as one process or as ranks under mpirun, and reports how it ended.

A crash, an exit status other than 0 and an exceeded time limit are objects of different types, not exceptions.
No process of the job is left running.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from starpullm.errors import RuntimeFailureError
from starpullm.processes import rank_wrapper, reaper
from starpullm.processes.endings import Completed, Crashed, ExitedWith, Job, JobEnding, RankReport, Stopped, TimedOut
from starpullm.processes.mpirun import mpi_parameters, mpirun_here, outside_of_jobs
from starpullm.processes.progress import DIRECTORY_VARIABLE, read_failures, read_phases
from starpullm.processes.stacks import native_stacks

JOB_VARIABLE = "STARPULLM_JOB"
"""Environment variable by which the processes of a job are found: the names of nested jobs, outermost first, separated
by colons."""

FAILURE_SECONDS = 10.0
"""Seconds that ranks may go on after one of them has failed. Open MPI ends them within about two."""

_MEMORY = Path("/dev/shm")
"""The directory for files that are memory shared between processes."""

_POLL_SECONDS = 0.1
_CLOCK_SECONDS = 1.0  # far above the resolution of the times of files
_PAUSE_SECONDS = 0.01
_STACK_SECONDS = 10.0  # for the native stacks of all ranks together
_ABORT_SECONDS = 2.0  # for Python's stacks, which faulthandler writes at SIGABRT
_LEAVE_SECONDS = 1.0  # for ranks to end by themselves after another one has failed: mpirun's own default
_DYING_SECONDS = 0.5  # mpirun may end before the kernel has removed a rank that mpirun killed


def run_job(job: Job, stop: threading.Event | None = None) -> JobEnding:
    """Run a job to its end; kill it at its time limit, or if it goes on for `FAILURE_SECONDS` after a rank has failed.

    Afterwards no process of the job runs that has kept the environment it was given, no file of MPI's is left, and the
    directory of the job's temporary files, its TMPDIR, is removed. If this process is killed, the ranks are killed and
    the directories are removed too. Reading the stacks of ranks that are to be killed takes at most about ten seconds.

    Another thread sets `stop` to have the job killed before its time limit.
    """
    with new_job_directories() as directories:
        ranks = directories.directory / "ranks"
        ranks.mkdir()
        (directories.directory / "tmp").mkdir()
        start = time.monotonic()
        left_running: list[str] = []
        stacks: dict[int, str] = {}
        with _started(job, directories) as process:
            ended = _wait(process, directories, job.ranks or 1, start + job.time_limit, stop)
            seconds = time.monotonic() - start
            failure = _first_failure(ranks)
            reports = _read_reports(job, ranks)
            if ended:
                left_running = _describe_remaining(directories.name, process.pid)
            else:
                stacks = _native_stacks(directories)
        for rank, report in reports.items():
            stdout, stderr = _text(ranks / f"{rank}.stdout"), _text(ranks / f"{rank}.stderr")
            reports[rank] = replace(report, stdout=stdout, stderr=stderr, native_stacks=stacks.get(rank, ""))
        common = (job, seconds, reports, _text(directories.directory / "launcher"), tuple(left_running))
    if failure is None and ended and process.returncode != 0:
        failure = process.returncode, None
    if failure is not None:
        status, culprit = failure
        if status < 0:
            return Crashed(*common, signal=-status, rank=culprit)
        return ExitedWith(*common, status=status, rank=culprit)
    if ended:
        return Completed(*common)
    return Stopped(*common) if stop is not None and stop.is_set() else TimedOut(*common)


class JobDirectories(NamedTuple):
    """What a job has for itself while it runs."""

    name: str
    """By which its processes are found."""
    directory: Path
    """For its temporary files."""
    memory: Path
    """For files that are memory shared between its ranks: a crashed rank leaves them behind."""


@contextmanager
def new_job_directories(others: Sequence[Path] = ()) -> Iterator[JobDirectories]:
    """Make a job's directories, and remove them afterwards.

    If this process is killed meanwhile, the job's processes are killed, and these and other directories removed.
    """
    name = uuid.uuid4().hex
    with _temporary_directory() as directory:
        shared_memory = _temporary_directory(_MEMORY) if os.access(_MEMORY, os.W_OK) else nullcontext(directory)
        with shared_memory as memory, reaper.ended_with_this_process(JOB_VARIABLE, name, (*others, directory, memory)):
            yield JobDirectories(name, directory, memory)


@contextmanager
def launched(command: Sequence[str], directories: JobDirectories, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a job's first process, in a session of its own; afterwards kill all processes.

    Options are those of ``Popen``; without ``stdin`` there is none.
    """
    process = subprocess.Popen(command, start_new_session=True, **{"stdin": subprocess.DEVNULL, **options})
    try:
        yield process
    finally:
        left = reaper.kill_all(lambda: processes_of(directories.name), process)
        if left:
            raise RuntimeFailureError(
                f"job: processes {', '.join(map(str, left))} run {reaper.KILL_SECONDS:g} s after they were killed, "
                "expected none"
            )
        process.wait()


def job_variable(base: Mapping[str, str], name: str) -> str:
    """Return the value of `JOB_VARIABLE` for the processes of a job that an environment's jobs have inside them."""
    outer = base.get(JOB_VARIABLE)
    return f"{outer}:{name}" if outer else name


def job_environment(job: Job, base: Mapping[str, str], name: str, directory: Path, memory: Path) -> dict[str, str]:
    """Return the environment of a job's processes; the last three are those of its `JobDirectories`."""
    return {
        "PYTHONFAULTHANDLER": "1",  # Python's stack of every thread at a crash
        **outside_of_jobs(base, on_this_machine=True),
        **job.environment,
        JOB_VARIABLE: job_variable(base, name),
        DIRECTORY_VARIABLE: str(directory / "ranks"),
        "TMPDIR": str(directory / "tmp"),
        **mpi_parameters(directory / "tmp", memory),
    }


def processes_of(name: str) -> list[int]:
    """Return the processes of a job, and of jobs inside it, by the name in their environment."""
    return reaper.processes_with(JOB_VARIABLE, name)


@contextmanager
def _temporary_directory(parent: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="starpullm-", dir=parent, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextmanager
def _started(job: Job, directories: JobDirectories) -> Iterator[subprocess.Popen[bytes]]:
    environment = job_environment(job, os.environ, *directories)
    command = [sys.executable, "-I", "-S", rank_wrapper.__file__, str(directories.directory / "ranks"), *job.command]
    if job.ranks is not None:
        exported = [*job.environment, JOB_VARIABLE, DIRECTORY_VARIABLE]
        command = [*mpirun_here(job.ranks, exported, environment.get("PATH")), *command]
    with (
        (directories.directory / "launcher").open("wb") as output,
        launched(command, directories, stdout=output, stderr=output, env=environment) as process,
    ):
        yield process


def _wait(
    process: subprocess.Popen[bytes],
    directories: JobDirectories,
    count: int,
    limit: float,
    stop: threading.Event | None,
) -> bool:
    """Wait for the end of a job; False if it has to be killed: by a time limit, or because `stop` is set.

    A job may be idle for long, so this asks little: the kernel says when the process has ended. After a failure the
    other ranks are asked to end, and the end of all ranks is enough. mpirun takes longer for both, because it waits as
    long as `mpi_parameters` says, needed or not.
    """
    ranks = directories.directory / "ranks"
    failed = None
    asked = False
    changed = -1
    poll = select.poll()
    end = reaper.process_end(process.pid)
    try:
        poll.register(end, select.POLLIN)
        while not poll.poll(_POLL_SECONDS * 1000):
            now = time.monotonic()
            before, changed = changed, ranks.stat().st_mtime_ns  # with the resolution of the kernel's clock
            is_new = changed != before or time.time_ns() - changed < _CLOCK_SECONDS * 1e9
            if failed is None and is_new and _first_failure(ranks) is not None:
                failed, limit = now, min(limit, now + FAILURE_SECONDS)
            ended = {} if failed is None else _read_endings(ranks)
            if len(ended) == count:
                return True
            if now > limit or (stop is not None and stop.is_set()):
                return False
            if failed is not None and ended and not asked and now > failed + _LEAVE_SECONDS:
                asked = True
                for survivor in _running(directories, ended).values():
                    with suppress(ProcessLookupError):
                        os.kill(survivor, signal.SIGTERM)
    finally:
        os.close(end)
    process.wait()
    return True


def _running(directories: JobDirectories, ended: Container[int]) -> dict[int, int]:
    """Return the processes of the ranks that haven't ended."""
    processes = processes_of(directories.name)
    pids = {int(path.stem): int(path.read_text("ascii")) for path in (directories.directory / "ranks").glob("*.pid")}
    return {rank: pid for rank, pid in pids.items() if rank not in ended and pid in processes}


def _first_failure(ranks: Path) -> tuple[int, int | None] | None:
    """Return status and rank of the first failure.

    A rank's wrapper writes its record before mpirun sees the end of the rank, so ranks that mpirun then kills end
    later. A rank that leaves with status 0 before the others is a failure if mpirun ends them for that.
    """
    endings = _read_endings(ranks)
    events = [(failure.time_ns, failure.status, rank) for rank, failure in read_failures(ranks).items()]
    events += [(time_ns, status, rank) for rank, (status, time_ns) in endings.items() if status != 0]
    if not events:
        return None
    first = min(events)
    if first[1] in (-signal.SIGTERM, 128 + signal.SIGTERM):
        first = min(first, *((time_ns, status, rank) for rank, (status, time_ns) in endings.items()))
    return first[1:]


def _read_endings(ranks: Path) -> dict[int, tuple[int, int]]:
    """Return the wrappers' records by rank: exit status, negative for a signal, and CLOCK_MONOTONIC in nanoseconds."""
    endings = {}
    for path in ranks.glob("*.ending"):
        status, time_ns = path.read_text("ascii").split()
        endings[int(path.stem)] = int(status), int(time_ns)
    return endings


def _read_reports(job: Job, ranks: Path) -> dict[int, RankReport]:
    """Return what is known of each rank now, without its output."""
    pids = {int(path.stem): int(path.read_text("ascii")) for path in ranks.glob("*.pid")}
    endings, phases, failures = _read_endings(ranks), read_phases(ranks), read_failures(ranks)
    return {
        rank: RankReport(
            rank=rank,
            pid=pids.get(rank),
            status=endings[rank][0] if rank in endings else None,
            phase=phases.get(rank),
            failure=failures.get(rank),
        )
        for rank in range(job.ranks or 1)
    }


def _native_stacks(directories: JobDirectories) -> dict[int, str]:
    """Return the native stacks of the ranks that run, and make them write Python's to their standard error."""
    ranks = directories.directory / "ranks"
    running = _running(directories, _read_endings(ranks))
    deadline = time.monotonic() + _STACK_SECONDS
    stacks = {rank: native_stacks(pid, max(deadline - time.monotonic(), 0)) for rank, pid in running.items()}
    for pid in running.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)
    deadline = time.monotonic() + _ABORT_SECONDS
    while time.monotonic() < deadline and not running.keys() <= _read_endings(ranks).keys():
        time.sleep(_PAUSE_SECONDS)
    return stacks


def _describe_remaining(name: str, launcher: int) -> list[str]:
    """Return what still runs of a job whose ranks have ended, except its launcher and what is about to end."""

    def remaining() -> list[int]:
        return [pid for pid in processes_of(name) if pid != launcher]

    deadline = time.monotonic() + _DYING_SECONDS
    while remaining() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    descriptions = []
    for pid in remaining():
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            descriptions.append(f"{pid}: {command.strip()}")
    return descriptions


def _text(path: Path) -> str:
    """Return what is in a file, if it was ever made."""
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""
