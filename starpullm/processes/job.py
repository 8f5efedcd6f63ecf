"""Runs a job in a child process or under mpirun, finds its failures from outside, and leaves nothing of it running.

Tests, checks and benchmarks call it. A crash, a hang and an exit status are outcomes with a type, not exceptions.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

from starpullm.errors import InvalidArgumentError, MissingDependencyError, RuntimeFailureError
from starpullm.processes import keeper
from starpullm.processes.progress import DIRECTORY_VARIABLE, Failure, Phase, read_failures, read_phases
from starpullm.processes.stacks import native_stacks

__all__ = [
    "Completed",
    "Crashed",
    "ExitedWith",
    "Job",
    "Outcome",
    "RankReport",
    "TimedOut",
    "job_environment",
    "mpirun_command",
    "processes_of",
    "run_job",
]

JOB_VARIABLE = "STARPULLM_JOB"
"""Environment variable by which the processes of a job are found: names of jobs, the outermost first, with colons."""

FAILURE_SECONDS = 10.0
"""How long a job may go on after one of its ranks has failed. Open MPI ends it within about two."""

_MEMORY = Path("/dev/shm")
"""Where memory that processes share has its files."""

_POLL_SECONDS = 0.1
_PAUSE_SECONDS = 0.01
_STACK_SECONDS = 10.0  # for the native stacks of all ranks together
_ABORT_SECONDS = 2.0  # for Python's stacks, which faulthandler writes at SIGABRT
_DYING_SECONDS = 0.5  # mpirun may end before the kernel has done with a rank that it killed
_KILL_SECONDS = 10.0
_TAIL_LINES = 40  # of what a rank wrote, in an outcome's text; Python's stacks of a few threads fit

# What tells a process that it is a rank, and what else it then has that would confuse an mpirun inside it.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_OUTER_JOB = ("OMPI_*", "ORTE_*", "PRTE_*", "PMIX_*", "PMI_*", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class Job:
    """What to run, and for how long.

    Parameters
    ----------
    command
        Program and arguments; ``sys.executable`` first for Python.
    time_limit
        Seconds.
    ranks
        How many under mpirun, all on this machine; None: one process without mpirun.
    environment
        Added to that of this process.
    without
        Names that are dropped from that of this process; ``STARPU_*`` stands for all that begin so.
    cwd
        Current directory.
    """

    command: Sequence[str]
    time_limit: float
    ranks: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()
    cwd: Path | None = None


@dataclass(frozen=True)
class RankReport:
    """What is known of one rank at the end of its job.

    Parameters
    ----------
    rank
        Which.
    pid
        Its process; None if it never began.
    status
        Exit status, negative for a signal; None if it was still running when the job was ended.
    phase
        What it reported last, with the time from then to the end of the job.
    failure
        Why it gave up, if it said so.
    stdout, stderr
        Everything that it wrote.
    native_stacks
        Where its threads were when the time was over.
    """

    rank: int
    pid: int | None
    status: int | None
    phase: Phase | None
    failure: Failure | None
    stdout: str
    stderr: str
    native_stacks: str

    def __str__(self) -> str:
        """Return how the rank ended and where it was, in words."""
        if self.pid is None:
            ending = "never began"
        elif self.status is None:
            ending = "was running"
        elif self.status < 0:
            ending = f"ended by {_signal_name(-self.status)}"
        else:
            ending = f"exit status {self.status}"
        if self.phase is None:
            return f"{ending}, no phase reported"
        return f"{ending}, {self.phase} for {self.phase.seconds_ago:.1f} s"


@dataclass(frozen=True)
class Outcome(ABC):
    """How a job ended; its text is a sentence about that, then the ranks, then the last lines that they wrote.

    Parameters
    ----------
    job
        What was run.
    seconds
        How long it took.
    reports
        By rank; a job without mpirun has rank 0.
    launcher_stderr
        What mpirun said.
    left_running
        Processes that the job had left behind when it ended by itself, and that were killed.
    """

    job: Job
    seconds: float
    reports: Mapping[int, RankReport]
    launcher_stderr: str
    left_running: tuple[str, ...]

    @property
    @abstractmethod
    def sentence(self) -> str:
        """How the job ended, naming the rank if one rank ended it."""

    @property
    def stdout(self) -> str:
        """What the ranks wrote, in the order of ranks."""
        return "".join(report.stdout for report in self.reports.values())

    @property
    def stderr(self) -> str:
        """What the ranks wrote to standard error, in the order of ranks."""
        return "".join(report.stderr for report in self.reports.values())

    def completed(self) -> Completed:
        """Return the outcome if all ranks ended with status 0.

        Raises
        ------
        RuntimeFailureError
            With the outcome's text, if not.
        """
        raise RuntimeFailureError(str(self))

    def __str__(self) -> str:
        """Return everything that helps to find the reason."""
        lines = [self.sentence, f"command: {' '.join(self.job.command)}"]
        if self.job.ranks is not None:
            lines += [f"rank {report.rank}: {report}" for report in self.reports.values()]
        lines += [f"left running, killed: {process}" for process in self.left_running]
        for report in self.reports.values():
            of_rank = "" if self.job.ranks is None else f" of rank {report.rank}"
            lines += _section(f"standard output{of_rank}", report.stdout)
            lines += _section(f"standard error{of_rank}", report.stderr)
            if report.native_stacks:
                lines += [f"---- native stacks{of_rank}", report.native_stacks]
        lines += _section("mpirun", self.launcher_stderr)
        return "\n".join(lines)

    def _who(self, rank: int | None) -> str:
        if self.job.ranks is None:
            return "the process"
        return "mpirun" if rank is None else f"rank {rank} of {self.job.ranks}"

    def _where(self, rank: int | None) -> str:
        phase = None if rank is None else self.reports[rank].phase
        return "" if phase is None else f" ({phase})"


@dataclass(frozen=True)
class Completed(Outcome):
    """Every rank ended with status 0."""

    @property
    def sentence(self) -> str:
        """How long it took."""
        return f"completed after {self.seconds:.1f} s"

    def completed(self) -> Completed:
        """Return itself."""
        return self


@dataclass(frozen=True)
class ExitedWith(Outcome):
    """A rank gave up or ended with a status that isn't 0, and it was the first; None: mpirun itself."""

    status: int
    rank: int | None

    @property
    def sentence(self) -> str:
        """Which rank, its status, where it was, and why if it said so."""
        sentence = f"{self._who(self.rank)} ended with exit status {self.status}{self._where(self.rank)}"
        failure = None if self.rank is None else self.reports[self.rank].failure
        return f"{sentence}: {failure.sentence}" if failure is not None and failure.sentence else sentence


@dataclass(frozen=True)
class Crashed(Outcome):
    """A signal ended a rank, and it was the first to end so; None: mpirun itself."""

    signal: int
    rank: int | None

    @property
    def sentence(self) -> str:
        """Which rank, the signal, and where it was."""
        return f"{self._who(self.rank)} was ended by {_signal_name(self.signal)}{self._where(self.rank)}"


@dataclass(frozen=True)
class TimedOut(Outcome):
    """The time limit came first, and the job was killed."""

    @property
    def phases(self) -> dict[int, Phase]:
        """What each rank reported last, for those that did."""
        return {rank: report.phase for rank, report in self.reports.items() if report.phase is not None}

    @property
    def sentence(self) -> str:
        """The limit, and where each rank was."""
        if self.job.ranks is None:
            ranks = str(self.reports[0])
        else:
            ranks = "; ".join(f"rank {report.rank} {report}" for report in self.reports.values())
        return f"not ended after {self.job.time_limit:g} s: {ranks}"


def run_job(job: Job) -> Outcome:
    """Run a job to its end, or end it: after its time limit, or if it goes on for long after a rank has failed.

    When it returns or raises, no process of the job is left that has kept the environment it was given, and no file of
    MPI's. The directory for the job's temporary files, its TMPDIR, is removed. If this process is killed, so are the
    ranks, and the directories are removed all the same. The time after the limit, for looking where the ranks are, is
    about ten seconds at most.

    Raises
    ------
    InvalidArgumentError
        If the number of ranks, the time limit, the command or the directory can't be.
    MissingDependencyError
        If there is no mpirun for the ranks.
    RuntimeFailureError
        If a process of the job can't be killed.
    """
    _check(job)
    name = uuid.uuid4().hex
    with _temporary_directory() as directory, _shared_memory_directory(directory) as memory:
        ranks, progress = directory / "ranks", directory / "progress"
        for part in (ranks, progress, directory / "tmp"):
            part.mkdir()
        environment = job_environment(job, os.environ, name, directory, memory)
        places = os.pathsep.join((str(directory), str(memory)))
        command = [sys.executable, "-I", "-S", keeper.__file__, str(ranks), str(os.getpid()), places, *job.command]
        if job.ranks is not None:
            command = [*_mpirun(job, environment), *command]
        start = time.monotonic()
        with (directory / "launcher").open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=job.cwd,
                start_new_session=True,
            )
        stacks: dict[int, str] = {}
        left_running: list[str] = []
        try:
            ended = _wait(process, ranks, progress, start + job.time_limit)
            seconds = time.monotonic() - start
            pids, endings = _read_pids(ranks), _read_endings(ranks)
            phases, failures = read_phases(progress), read_failures(progress)
            if ended:
                left_running = _describe_remaining(name)
            else:
                stacks = _stop(name, pids, ranks)
        finally:
            _kill(name)
            process.wait()
        reports = {
            rank: RankReport(
                rank,
                pids.get(rank),
                endings[rank].status if rank in endings else None,
                phases.get(rank),
                failures.get(rank),
                _text(ranks / f"{rank}.stdout"),
                _text(ranks / f"{rank}.stderr"),
                stacks.get(rank, ""),
            )
            for rank in range(job.ranks or 1)
        }
        told = (job, seconds, reports, _text(directory / "launcher"), tuple(left_running))
    first: tuple[int, int | None] | None = _first_failure(endings, failures)
    if first is None and ended and process.returncode != 0:
        first = (process.returncode, None)
    if first is None:
        return Completed(*told) if ended else TimedOut(*told)
    status, rank = first
    return Crashed(*told, signal=-status, rank=rank) if status < 0 else ExitedWith(*told, status=status, rank=rank)


def mpirun_command(mpirun: str, ranks: int, exported: Sequence[str], *, open_mpi: bool, root: bool) -> list[str]:
    """Return the part of a command line that comes before the command that mpirun is to run.

    Parameters
    ----------
    mpirun
        The program.
    ranks
        How many.
    exported
        Names of environment variables for the ranks. Only Open MPI has to be told.
    open_mpi
        Whether it is Open MPI's; any other gets the number of ranks alone, which all understand.
    root
        Whether the user is root.
    """
    command = [mpirun, "-n", str(ranks)]
    if not open_mpi:
        return command
    # Unbound: which cores a rank takes is for its partition to say.
    command += ["--oversubscribe", "--bind-to", "none"]
    if root:
        command.append("--allow-run-as-root")
    for name in exported:
        command += ["-x", name]
    return command


def job_environment(job: Job, base: Mapping[str, str], name: str, directory: Path, memory: Path) -> dict[str, str]:
    """Return the environment of a job's processes.

    Parameters
    ----------
    job
        What adds to it and drops from it.
    base
        What it is made from.
    name
        The job's, by which its processes are found.
    directory, memory
        The job's own, for files and for memory shared between ranks.
    """
    dropped = tuple(job.without)
    if any(variable in base for variable in _RANK_VARIABLES):
        dropped += _OUTER_JOB
    environment = {
        variable: value
        for variable, value in base.items()
        if not any(fnmatchcase(variable, pattern) for pattern in dropped)
    }
    outer = base.get(JOB_VARIABLE)
    return {
        "PYTHONFAULTHANDLER": "1",  # Python's stack of every thread at a crash
        **environment,
        **job.environment,
        JOB_VARIABLE: f"{outer}:{name}" if outer else name,
        DIRECTORY_VARIABLE: str(directory / "progress"),
        "TMPDIR": str(directory / "tmp"),
        "OMPI_MCA_orte_tmpdir_base": str(directory / "tmp"),
        "OMPI_MCA_btl_vader_backing_directory": str(memory),
        "OMPI_MCA_osc_sm_backing_directory": str(memory),
        "OMPI_MCA_osc_rdma_backing_directory": str(memory),
    }


def processes_of(name: str) -> list[psutil.Process]:
    """Return the processes that were started with a job's name in their environment, jobs inside it included."""
    found = []
    for process in psutil.process_iter():
        # Zombies have no environment any more, those of other users are closed to us: neither is ours to end.
        with suppress(psutil.Error, OSError):
            if name in process.environ().get(JOB_VARIABLE, "").split(":"):
                found.append(process)
    return found


# ---- How it works ----


class _Ending(NamedTuple):
    """What a rank's keeper has noted: exit status, negative for a signal, and CLOCK_MONOTONIC in nanoseconds."""

    status: int
    time_ns: int


def _check(job: Job) -> None:
    if job.ranks is not None and job.ranks < 1:
        raise InvalidArgumentError(f"ranks: found {job.ranks}, expected at least 1")
    if not (job.time_limit > 0 and math.isfinite(job.time_limit)):
        raise InvalidArgumentError(f"time_limit: found {job.time_limit:g}, expected a positive number of seconds")
    if job.cwd is not None and not job.cwd.is_dir():
        raise InvalidArgumentError(f"cwd: found {job.cwd}, expected a directory")
    if not job.command:
        raise InvalidArgumentError("command: found nothing, expected a program")


@contextmanager
def _temporary_directory(parent: Path | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="starpullm-", dir=parent, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _shared_memory_directory(otherwise: Path) -> AbstractContextManager[Path]:
    """Return a directory of the job's own in memory: a rank that crashes leaves behind what it shared there."""
    return _temporary_directory(_MEMORY) if os.access(_MEMORY, os.W_OK) else nullcontext(otherwise)


def _mpirun(job: Job, environment: Mapping[str, str]) -> list[str]:
    assert job.ranks is not None
    mpirun = shutil.which("mpirun", path=environment.get("PATH"))
    if mpirun is None:
        raise MissingDependencyError(
            "mpirun: not found on PATH, expected it for several ranks: apt-get install openmpi-bin"
        )
    exported = [*job.environment, JOB_VARIABLE, DIRECTORY_VARIABLE]
    return mpirun_command(mpirun, job.ranks, exported, open_mpi=_is_open_mpi(mpirun), root=os.geteuid() == 0)


@cache
def _is_open_mpi(mpirun: str) -> bool:
    try:
        run = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependencyError(f"{mpirun}: doesn't say its version: {error}") from error
    return "Open MPI" in run.stdout or "OpenRTE" in run.stdout


def _wait(process: subprocess.Popen[bytes], ranks: Path, progress: Path, limit: float) -> bool:
    """Wait for the end of a job; False if it has to be ended, because its time or that after a failure is over."""
    failed = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)
            return True
        now = time.monotonic()
        if not failed and _first_failure(_read_endings(ranks), read_failures(progress)) is not None:
            failed, limit = True, min(limit, now + FAILURE_SECONDS)
        if now > limit:
            return False


def _first_failure(endings: Mapping[int, _Ending], failures: Mapping[int, Failure]) -> tuple[int, int] | None:
    """Return status and rank of what ended the job.

    mpirun hears of a rank's end only after its keeper has noted the time, so what mpirun does to the others is later.
    """
    events = [(failure.time_ns, failure.status, rank) for rank, failure in failures.items()]
    events += [(ending.time_ns, ending.status, rank) for rank, ending in endings.items() if ending.status != 0]
    return min(events)[1:] if events else None


def _read_endings(ranks: Path) -> dict[int, _Ending]:
    endings = {}
    for path in ranks.glob("*.ending"):
        status, time_ns = path.read_text("ascii").split()
        endings[int(path.stem)] = _Ending(int(status), int(time_ns))
    return endings


def _read_pids(ranks: Path) -> dict[int, int]:
    return {int(path.stem): int(path.read_text("ascii")) for path in ranks.glob("*.pid")}


def _stop(name: str, pids: Mapping[int, int], ranks: Path) -> dict[int, str]:
    """Let the ranks that run say where they are: native stacks are returned, Python's go to their standard error."""
    marked = {process.pid: process for process in processes_of(name)}
    ended = _read_endings(ranks)
    running = {rank: marked[pid] for rank, pid in sorted(pids.items()) if pid in marked and rank not in ended}
    deadline = time.monotonic() + _STACK_SECONDS
    stacks = {
        rank: native_stacks(process.pid, max(deadline - time.monotonic(), 0)) for rank, process in running.items()
    }
    for process in running.values():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGABRT)
    deadline = time.monotonic() + _ABORT_SECONDS
    while time.monotonic() < deadline and not running.keys() <= _read_endings(ranks).keys():
        time.sleep(_PAUSE_SECONDS)
    return stacks


def _describe_remaining(name: str) -> list[str]:
    """Return what still runs of a job that has ended, except what is about to end."""
    deadline = time.monotonic() + _DYING_SECONDS
    while (remaining := processes_of(name)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    descriptions = []
    for process in remaining:
        with suppress(psutil.Error):
            descriptions.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return descriptions


def _kill(name: str) -> None:
    """Kill all processes of a job, and those that they start meanwhile."""
    deadline = time.monotonic() + _KILL_SECONDS
    nothing_seen = 0
    # One look isn't enough: a process may start another while this looks, and be gone before its turn comes.
    while nothing_seen < 2:
        found = processes_of(name)
        nothing_seen = 0 if found else nothing_seen + 1
        if found and time.monotonic() > deadline:
            raise RuntimeFailureError(
                f"job: processes {', '.join(str(process.pid) for process in found)} run {_KILL_SECONDS:g} s after they "
                "were killed, expected none"
            )
        # Ranks before mpirun, which would have something to say about their end.
        for process in sorted(found, key=lambda process: process.pid, reverse=True):
            with suppress(psutil.Error):
                process.kill()
        if found:
            time.sleep(_PAUSE_SECONDS)


def _text(path: Path) -> str:
    """Return what is in a file, if it was ever made."""
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _section(title: str, text: str) -> list[str]:
    lines = text.splitlines()
    if not lines:
        return []
    cut = len(lines) - _TAIL_LINES
    return [f"---- {title}" + (f", without the first {cut} lines" if cut > 0 else ""), *lines[-_TAIL_LINES:]]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
