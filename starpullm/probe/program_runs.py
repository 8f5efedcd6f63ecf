"""The runs of one program: what they have in common, how long each may take, and where its records are."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from starpullm.errors import InvalidArgumentError
from starpullm.probe import probe_schedules
from starpullm.probe.findings import ProgramFinding
from starpullm.probe.probe_schedules import ProbeSchedule
from starpullm.probe.program import ProgramEnding, run_program
from starpullm.probe.program_tasks import TaskFlow
from starpullm.probe.recorded import RecordedRun, record
from starpullm.probe.surroundings import Files, no_input
from starpullm.probe.undeclared import PROTECTION_SECONDS, protections

_FIRST_TIME_LIMIT = 300.0
"""Seconds for the reference schedule, if none are given; another one then has `_LIMIT_FACTOR` times the slowest."""

_LIMIT_FACTOR, _LEAST_TIME_LIMIT = 10, 10.0


@dataclass
class TimeLimits:
    """How long runs may take: by the slowest that has ended, and by what each kind does besides."""

    asked: float | None
    slowest: float = 0
    num_tasks: int = 0
    protections: int = 0

    def limit(self, schedule: ProbeSchedule) -> float:
        """Return the seconds that a run may take."""
        if self.asked is not None or self.slowest == 0:
            return self.asked or _FIRST_TIME_LIMIT
        limit = max(_LEAST_TIME_LIMIT, _LIMIT_FACTOR * (self.slowest + self._own_seconds(schedule)))
        return limit + 1e-3 * probe_schedules.PROMPT_MS * schedule.prompt

    def learn(self, run: RecordedRun) -> None:
        """Take account of a run."""
        if run.ending.status is not None:
            self.slowest = max(self.slowest, run.ending.seconds - self._own_seconds(run.schedule))
        if run.schedule is probe_schedules.REFERENCE:
            self.num_tasks, self.protections = run.num_tasks, sum(map(protections, run.flows.values()))

    def _own_seconds(self, schedule: ProbeSchedule) -> float:
        """Return about how long a run of a kind does what the reference schedule doesn't."""
        delays = 1e-6 * schedule.delay_us * self.num_tasks / 4  # of every fourth task, at most
        return delays + schedule.watched * self.protections * PROTECTION_SECONDS


@dataclass
class ProgramRuns:
    """Runs a program in one schedule after the other; ``seconds`` has the time of each by the schedule's name.

    ``contents`` says whose contents all runs record, as `ProbeSchedule.environment` says it.
    """

    command: tuple[str, ...]
    workers: int
    directory: Path
    limits: TimeLimits
    progress: Callable[[], None]
    contents: str = ""
    keeps_logs: bool = False
    ordered: bool = False
    devices: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    again: int = 0
    """Runs for findings, which aren't in ``seconds``."""

    def __post_init__(self) -> None:
        """Look at the files before the first run."""
        self.files = Files(self.command, self.directory)

    @contextmanager
    def run(self, schedule: ProbeSchedule) -> Iterator[RecordedRun]:
        """Run a schedule; its records are removed afterwards, unless they are kept."""
        try:
            run = self._record(schedule, schedule.folder, self.contents)
            self.seconds[schedule.name] = run.ending.seconds
            if schedule.name not in [one.name for one in probe_schedules.NOT_ALWAYS]:
                self.progress()
            yield run
        finally:
            self._remove(self.directory / schedule.folder)

    def run_again(self, schedule: ProbeSchedule, keep: str, finding: ProgramFinding) -> TaskFlow | None:
        """Run a schedule for a finding, and return what its rank recorded; None if it didn't come to its end."""
        self.again += 1
        try:
            run = self._record(schedule, f"again-{self.again}", keep)
        except InvalidArgumentError:  # it recorded nothing, or couldn't
            return None
        finally:
            if not keep:
                self.forget_runs_again()
        flow = run.flows.get(finding.rank)
        return flow if flow is not None and flow.num_tasks > finding.task and run.is_complete else None

    def run_bare(self) -> ProgramEnding:
        """Run the program without the probe."""
        folder = self.directory / "bare"
        folder.mkdir()
        limit = self.limits.limit(probe_schedules.REFERENCE)
        return run_program(self.command, {"STARPU_HOME": str(self.directory)}, limit, folder)

    def forget_runs_again(self) -> None:
        """Remove the records of runs for findings, unless logs are kept."""
        for folder in self.directory.glob("again-*"):
            self._remove(folder)

    def _remove(self, folder: Path) -> None:
        if not self.keeps_logs:
            shutil.rmtree(folder, ignore_errors=True)

    def _record(self, schedule: ProbeSchedule, folder: str, keep: str) -> RecordedRun:
        temporary = () if self.keeps_logs else (self.directory,)
        as_asked = replace(schedule, ordered=self.ordered, devices=self.devices)
        limit = self.limits.limit(schedule)
        try:
            run = record(self.command, as_asked, self.directory / folder, self.workers, limit, keep, temporary)
        except InvalidArgumentError as error:
            reason = self.files.leavings() or "the first run did" if self.limits.num_tasks else no_input()
            raise InvalidArgumentError(f"{error}; {reason}" if reason else str(error)) from error
        run = replace(run, schedule=schedule)
        self.limits.learn(run)
        return run

    def replay(self, schedule: str) -> str:
        """Return a command that runs a schedule again."""
        options = f"--workers {self.workers}" + " --sums ordered" * self.ordered
        options += f" --devices {self.devices}" * (self.devices > 0)
        return f"starpullm probe {options} --replay {shlex.quote(schedule)} -- {shlex.join(self.command)}"
