"""A job, and how it can end: one type for each way, with a text that says what is known of the cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starpullm.errors import RuntimeFailureError
from starpullm.processes.progress import Phase, RankFailure

_STARPU_ABORT = re.compile(r"^\[starpu\].*\[(?:abort|assert failure)\].*$", re.MULTILINE)
_TAIL_LINES = 40  # of a rank's output, in an ending's text; Python's stacks of a few threads fit


@dataclass(frozen=True)
class Job:
    """What to run, for how long at most, and with which environment variables in addition to those of this process."""

    command: Sequence[str]
    time_limit: float
    ranks: int | None = None
    """How many under mpirun, all on this machine; None: one process without mpirun."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RankReport:
    """What is known of one rank at the end of its job: its last phase, its own report of a failure, its output."""

    rank: int
    pid: int | None
    """None if it was never started."""
    status: int | None
    """Negative for a signal; None if the rank was running when the job was stopped."""
    phase: Phase | None
    failure: RankFailure | None
    stdout: str = ""
    stderr: str = ""
    native_stacks: str = ""
    """Only if the rank was running when the job was stopped."""

    def __str__(self) -> str:
        """Return how the rank ended and its last phase, in words."""
        if self.pid is None:
            ending = "never began"
        elif self.status is None:
            ending = "was running"
        elif self.status < 0:
            ending = f"ended by {signal_name(-self.status)}"
        else:
            ending = f"exit status {self.status}"
        if self.phase is None:
            return f"{ending}, no phase reported"
        return f"{ending}, {self.phase} for {self.phase.seconds_ago:.1f} s"


@dataclass(frozen=True)
class JobEnding:
    """How a job ended; its text is a sentence about that, then the ranks, then the last lines of their output."""

    job: Job
    seconds: float
    reports: Mapping[int, RankReport]
    """By rank; a job without mpirun has rank 0."""
    launcher_stderr: str
    left_running: tuple[str, ...]
    """Processes that were still running after the job had ended by itself, and were killed."""

    @property
    def sentence(self) -> str:
        """How the job ended, with the rank whose failure ended it, and what is known of the cause."""
        return self._sentence()

    def _sentence(self) -> str:
        raise NotImplementedError

    @property
    def stdout(self) -> str:
        """The standard output of the ranks, in the order of ranks."""
        return "".join(report.stdout for report in self.reports.values())

    @property
    def stderr(self) -> str:
        """The standard error of the ranks, in the order of ranks."""
        return "".join(report.stderr for report in self.reports.values())

    def completed(self) -> Completed:
        """Return this ending if all ranks ended with status 0, or raise a `RuntimeFailureError` with its text."""
        if isinstance(self, Completed):
            return self
        raise RuntimeFailureError(str(self))

    def __str__(self) -> str:
        """Return everything that helps to find the cause."""
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

    def _ranks(self) -> str:
        if self.job.ranks is None:
            return str(self.reports[0])
        return "; ".join(f"rank {report.rank} {report}" for report in self.reports.values())


@dataclass(frozen=True)
class Completed(JobEnding):
    """Every rank ended with status 0."""

    def _sentence(self) -> str:
        return f"completed after {self.seconds:.1f} s"


@dataclass(frozen=True)
class ExitedWith(JobEnding):
    """The first rank to fail reported a failure or ended with this status; None: mpirun itself.

    Status 0: the rank ended before the others, which mpirun then ended.
    """

    status: int
    rank: int | None

    def _sentence(self) -> str:
        early = "" if self.status else " before the other ranks"
        sentence = f"{self._who(self.rank)} ended with exit status {self.status}{early}{self._where(self.rank)}"
        failure = None if self.rank is None else self.reports[self.rank].failure
        return f"{sentence}: {failure.sentence}" if failure is not None and failure.sentence else sentence


@dataclass(frozen=True)
class Crashed(JobEnding):
    """A signal ended the first rank to fail; None: mpirun itself."""

    signal: int
    rank: int | None

    def _sentence(self) -> str:
        sentence = f"{self._who(self.rank)} was ended by {signal_name(self.signal)}{self._where(self.rank)}"
        if self.signal != signal.SIGABRT or self.rank is None:
            return sentence
        lines = _STARPU_ABORT.findall(self.reports[self.rank].stderr)
        return f"{sentence}: StarPU aborted it: {lines[-1]}" if lines else sentence


@dataclass(frozen=True)
class TimedOut(JobEnding):
    """The job had not ended at its time limit, and was killed."""

    def _sentence(self) -> str:
        return f"not ended after {self.job.time_limit:g} s: {self._ranks()}"


@dataclass(frozen=True)
class Stopped(JobEnding):
    """The event that was given to `run_job` was set, and the job was killed."""

    def _sentence(self) -> str:
        return f"stopped after {self.seconds:.1f} s: {self._ranks()}"


def _section(title: str, text: str) -> list[str]:
    lines = text.splitlines()
    if not lines:
        return []
    cut = len(lines) - _TAIL_LINES
    return [f"---- {title}" + (f", without the first {cut} lines" if cut > 0 else ""), *lines[-_TAIL_LINES:]]


def signal_name(number: int) -> str:
    """Return the name of a signal, or ``signal 64`` if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
