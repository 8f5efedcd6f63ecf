"""Runs a program in the reference schedule and in perturbed ones, and judges what was recorded."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.files import probe_log
from starpullm.probe import probe_schedules
from starpullm.probe.compare import RunComparison, compare_ranks
from starpullm.probe.diagnose_missing_log import program_of
from starpullm.probe.elements import Tolerance, parse_tolerance
from starpullm.probe.findings import Fault, ProgramFinding, first_of_each
from starpullm.probe.first_difference import has_read_poison, with_first_element
from starpullm.probe.intended import Intended, read_intended, split_intended
from starpullm.probe.minimise import MINIMISED, Minimiser
from starpullm.probe.order import broken_order
from starpullm.probe.places import with_places
from starpullm.probe.poison import explain_poison, left_unwritten, of_unwritten, used_unwritten
from starpullm.probe.probe_result import ProbeResult, verdict
from starpullm.probe.probe_schedules import ProbeSchedule
from starpullm.probe.program_tasks import TaskFlow, counted
from starpullm.probe.recorded import RecordedRun, last_moments, record, running_tasks
from starpullm.probe.replay import schedule_of
from starpullm.probe.single_run_checks import (
    changed_between,
    never_changed,
    never_ran,
    nothing_to_compare,
    written_though_read,
)
from starpullm.probe.surroundings import Files, check_arguments, no_input
from starpullm.probe.tolerance import beyond_tolerance
from starpullm.probe.undeclared import PROTECTION_SECONDS, Watched, protections, undeclared_accesses

DEFAULT_RUNS = 5
DEFAULT_WORKERS = 4
FIRST_TIME_LIMIT = 300.0
"""Seconds for the reference schedule, if none are given; another one then has `_LIMIT_FACTOR` times the slowest."""
NUM_STANDARD_RUNS = 4
"""The reference schedule, watched for undeclared accesses, with poison, and with tasks at once."""

_LIMIT_FACTOR, _LEAST_TIME_LIMIT = 10, 10.0
_LONGEST_DELAY_US = 5000
_DELAYS_US = 1_000_000
"""The delays of all tasks of a run together, about, if they came one after the other."""
_MOST_FIRST_ELEMENTS = 3
"""Findings for which schedules are run again."""

_BY_UNSEEN_TASKS = (Fault.CHANGED_BETWEEN, Fault.INPUT_CHANGED, Fault.INPUT_FROM_OUTSIDE)
"""Findings that tasks which weren't seen explain."""


def probe_program(
    command: Sequence[str],
    *,
    runs: int = DEFAULT_RUNS,
    seed: int = 1,
    workers: int = DEFAULT_WORKERS,
    time_limit: float | None = None,
    tolerance: str | None = None,
    tolerance_type: str | None = None,
    sums: str = "free",
    poison: bool = True,
    keep: Path | None = None,
    intended: Path | None = None,
    progress: Callable[[], None] = lambda: None,
) -> ProbeResult:
    """Judge a StarPU program: whether its results depend on the schedule, and its tasks do what they declare.

    Parameters
    ----------
    command
        The program and its arguments, or ``mpirun -n N`` and them. It is run 4 + ``runs`` times; once more if a run
        differs, twice more if a task leaves something as it was that it declares to write, and again for findings whose
        first differing element is to be told. Each run gets the same standard input.
    runs
        In perturbed schedules, at least 1.
    seed
        Of the first of them, at least 1; the others follow.
    workers
        The CPU workers that StarPU is given in every run, also in the reference schedule, which uses one of them.
    time_limit
        Seconds for one run. Without it, 300 for the reference schedule, and for each other run at least 10, and 10
        times as long as the slowest that has ended, and as what this kind of run is known to do besides.
    tolerance, tolerance_type
        How far contents may be off that come from accesses whose order is free: ``"4ulp"``, or ``"1e-6"`` relative to
        the larger of two magnitudes; and what their elements are, which StarPU doesn't know: ``"float"``,
        ``"double"``, or ``"by-size"``: float of 4 bytes and double of 8. Without them, such contents may be anything.
    sums
        ``"ordered"``: accesses whose order is free (COMMUTE, REDUX) come in the order of submission.
    poison
        Whether to run with poison in what tasks declare as written only.
    keep
        A folder that is made, in which logs stay: one folder for each run, with the ends of the program's output.
    intended
        A file of findings about declarations that are no faults, with their reasons: see docs/probe.md.
    progress
        Is called after each run.

    Raises
    ------
    FormatError, FileError
        If the file of what is intended is wrong, or can't be read.
    InvalidArgumentError
        If an argument is out of range, or the program can't be judged: it can't be started, it isn't a StarPU program,
        it can't load the probe, or it submits no task. The sentence says which.
    RuntimeFailureError
        If a process of the program can't be killed.
    """
    for name, value in (("runs", runs), ("seed", seed), ("workers", workers)):
        if value < 1:
            raise InvalidArgumentError(f"{name}: found {value}, expected at least 1")
    if time_limit is not None and not time_limit > 0:
        raise InvalidArgumentError(f"time_limit: found {time_limit:g}, expected more than 0 seconds")
    check_arguments(command)
    bound = parse_tolerance(tolerance, tolerance_type)
    known = read_intended(intended) if intended else ()
    with _place(keep) as directory:
        ordered, keeps, files = sums == "ordered", keep is not None, Files(command, directory)
        judge = _Judge(tuple(command), directory, workers, time_limit, bound, known, progress, keeps, ordered, files)
        return judge.verdict(runs, seed, poison)


@contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    """Give a folder for logs: a new one that stays, or one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="starpullm-probe-", ignore_cleanup_errors=True) as directory:
            yield Path(directory)
        return
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"{keep}: can't be made: {error.strerror}, expected a new folder for logs"
        ) from error
    yield keep.resolve()


@dataclass
class _Judge:
    """Runs one schedule after the other, and collects what they show."""

    command: tuple[str, ...]
    directory: Path
    workers: int
    asked_limit: float | None
    tolerance: Tolerance | None
    intended: Sequence[Intended]
    progress: Callable[[], None]
    keeps: bool
    ordered: bool
    files: Files
    findings: list[ProgramFinding] = field(default_factory=list)
    moments: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    flows: dict[tuple[str, int], TaskFlow] = field(default_factory=dict)
    unsteady: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    is_steady: bool | None = None
    """Whether the reference schedule gives the same again, before a run that differs is judged; None: none has."""
    again: int = 0
    slowest: float = 0
    num_tasks: int = 0
    protections: int = 0
    watched: Watched = field(default_factory=Watched)

    def verdict(self, runs: int, seed: int, poison: bool) -> ProbeResult:
        """Return the result of all runs; the first run without poison that doesn't end by itself is the last."""
        with self._run(probe_schedules.REFERENCE) as reference:
            self._claims(reference)
            if reference.num_tasks == 0 and reference.is_complete:
                others = f", but {next(self._unseen())}" if self.totals["unseen tasks"] else ""
                raise InvalidArgumentError(
                    f"{program_of(self.command)}: submitted no task to StarPU (it {reference.ending}){others}, "
                    "expected at least one in a scheduling context without a policy of its own"
                )
            has_ended_well = self._has_ended_well(reference, reference)
            if has_ended_well:
                self._other_runs(reference, runs, seed, poison)
            return self._result(reference)

    def _other_runs(self, reference: RecordedRun, runs: int, seed: int, poison: bool) -> None:
        delay_us = min(_LONGEST_DELAY_US, 8 * _DELAYS_US // reference.num_tasks)
        self._watch(reference)
        if poison and self.is_steady is not False:
            self._poisoned_runs(reference)
        if self.is_steady is False:
            return
        for schedule in (
            *probe_schedules.perturbed(runs, seed, reference.num_workers, delay_us),
            probe_schedules.PROMPT,
        ):
            if not self._follows(schedule, reference):
                return

    def _watch(self, reference: RecordedRun) -> None:
        """Look for accesses that tasks don't declare, in a run whose end isn't judged.

        A system call on protected memory fails, also where the application has acquired that meanwhile.
        """
        with self._run(probe_schedules.WATCHED) as run:
            name = run.schedule.name
            self.watched = Watched.of(list(run.flows.values()))
            for rank, flow in run.flows.items():
                found = list(undeclared_accesses(name, flow))
                known = {(rank, one.kind, one.task, one.handle) for one in found}  # better, with a line
                self.findings = [
                    one for one in self.findings if (one.rank, one.kind, one.task, one.handle) not in known
                ]
                self._add(rank, found)
            if run.ending.status != reference.ending.status:
                self.is_steady = self._follows(probe_schedules.REPEATED, reference)
                text = (
                    "undeclared accesses after that: with data protected against them, the program "
                    f"{run.ending}, perhaps because a system call on such data fails then"
                )
                self.findings.append(ProgramFinding(Fault.NOT_CHECKED, name, text))

    def _follows(self, schedule: ProbeSchedule, reference: RecordedRun) -> bool:
        """Run a schedule and compare it; return whether others can be compared too."""
        with self._run(schedule) as run:
            if self._has_ended_well(run, reference):
                return self._compare(run, reference)
            self._compare_remains(run, reference)
        return False

    def _poisoned_runs(self, reference: RecordedRun) -> None:
        """Run with poison: once, and if a task has left some of it, twice with poison that stays, to see who uses it.

        They end by themselves or not; other schedules are compared all the same.
        """
        with self._run(probe_schedules.POISONED) as run:
            has_ended_well = self._has_ended_well(run, reference)
            self._compare_remains(run, reference)
            if self.is_steady is False:
                return
            is_comparable = has_ended_well and run.flows.keys() == reference.flows.keys()
            if is_comparable and any(len(left_unwritten(flow)) for flow in run.flows.values()):
                self.findings += self._used_unwritten(run, reference)
                for rank, flow in run.flows.items():
                    self._add(rank, of_unwritten(run.schedule.name, flow))

    def _used_unwritten(self, poisoned: RecordedRun, reference: RecordedRun) -> list[ProgramFinding]:
        """Return what a later task used of what tasks had left as it was."""
        first, second = probe_schedules.POISON_STAYS
        found: list[ProgramFinding] = []
        readers = {finding.codelet for finding in self.findings if finding.kind is Fault.WRITTEN_READ}
        with self._run(first) as one, self._run(second) as two:
            all(self._has_ended_well(run, reference) for run in (one, two))
            if not reference.flows.keys() == one.flows.keys() == two.flows.keys():
                return found
            for rank, comparison in compare_ranks(one.flows, two.flows, first.name).items():
                flows = poisoned.flows[rank], one.flows[rank], two.flows[rank]
                found += used_unwritten(*flows, comparison.findings, readers)
        return found

    @contextmanager
    def _run(self, schedule: ProbeSchedule) -> Iterator[RecordedRun]:
        """Run a schedule; its records are removed afterwards, unless they are kept."""
        keep = probe_schedules.KEEP_FROM_FREE if self.tolerance is not None else ""
        try:
            run = self._record(schedule, schedule.folder, keep)
            self.seconds[schedule.name] = run.ending.seconds
            if schedule not in (probe_schedules.REPEATED, *probe_schedules.POISON_STAYS):
                self.progress()
            yield run
        finally:
            self._remove(self.directory / schedule.folder)

    def _remove(self, folder: Path) -> None:
        if not self.keeps:
            shutil.rmtree(folder, ignore_errors=True)

    def _compare_remains(self, run: RecordedRun, reference: RecordedRun) -> None:
        """Compare what a run left that ended otherwise: a task that did something else may be why.

        That tasks are missing needs no finding of its own.
        """
        self._compare(run, reference)
        missing = Fault.OTHER_TASKS, run.schedule.name
        self.findings = [one for one in self.findings if (one.kind, one.schedule) != missing]

    def _run_again(self, schedule: ProbeSchedule, keep: str, finding: ProgramFinding) -> TaskFlow | None:
        """Run a schedule for a finding, and return what its rank recorded; None if it didn't come to its end."""
        self.again += 1
        try:
            run = self._record(schedule, f"again-{self.again}", keep)
        except InvalidArgumentError:  # it recorded nothing, or couldn't
            return None
        finally:
            if not keep:
                self._remove(self.directory / f"again-{self.again}")
        flow = run.flows.get(finding.rank)
        return flow if flow is not None and flow.num_tasks > finding.task and run.is_complete else None

    def _record(self, schedule: ProbeSchedule, folder: str, keep: str) -> RecordedRun:
        place = self.directory / folder
        temporary = () if self.keeps else (self.directory,)
        as_asked = replace(schedule, ordered=self.ordered)
        try:
            run = record(self.command, as_asked, place, self.workers, self._time_limit(schedule), keep, temporary)
        except InvalidArgumentError as error:
            reason = self.files.leavings() or "the first run did" if self.num_tasks else no_input()
            raise InvalidArgumentError(f"{error}; {reason}" if reason else str(error)) from error
        if run.ending.status is not None:
            self.slowest = max(self.slowest, run.ending.seconds - self._program_seconds(schedule))
        if schedule is probe_schedules.REFERENCE:
            self.num_tasks, self.protections = run.num_tasks, sum(map(protections, run.flows.values()))
        return replace(run, schedule=schedule)

    def _time_limit(self, schedule: ProbeSchedule) -> float:
        """Return the seconds that a run may take: by the slowest that has ended, and what this kind does besides."""
        if self.asked_limit is not None or self.slowest == 0:
            return self.asked_limit or FIRST_TIME_LIMIT
        limit = max(_LEAST_TIME_LIMIT, _LIMIT_FACTOR * (self.slowest + self._program_seconds(schedule)))
        return limit + 1e-3 * probe_schedules.PROMPT_MS * schedule.prompt

    def _program_seconds(self, schedule: ProbeSchedule) -> float:
        """Return about how long a run of a kind does what the reference schedule doesn't."""
        delays = 1e-6 * schedule.delay_us * self.num_tasks / 4  # of every fourth task, at most
        return delays + schedule.watched * self.protections * PROTECTION_SECONDS

    def _add(self, rank: int, findings: Iterable[ProgramFinding]) -> None:
        self.findings += [replace(finding, rank=rank) for finding in findings]

    def _has_ended_well(self, run: RecordedRun, reference: RecordedRun) -> bool:
        """Record how a run ended if that is a fault; return whether it can be compared."""
        status = run.ending.status
        if status is not None and status == (reference.ending.status if run is not reference else 0):
            return True
        sentence = run.describe_ending()
        if run is not reference:
            sentence += f"; in the reference schedule it {reference.ending}"
        kind = Fault.POISONED_ENDING if run.schedule.poison else Fault.ENDING
        if run.schedule is probe_schedules.REPEATED and run.is_complete:
            kind = Fault.CHANGING_INPUT
        ending = ProgramFinding(kind, run.schedule.name, sentence)
        for rank, flow in run.flows.items():
            for task in running_tasks(flow) if run.schedule.poison else ():  # it is likely the one that reads poison
                codelet = flow.log.names[int(flow.codelet[task])]
                ending = replace(ending, task=int(task), codelet=codelet, rank=rank)
        self.findings.append(ending)
        if run is reference and run.is_complete:
            return True  # its own idea of failure, but it ran to its end
        for rank, flow in run.flows.items():
            name = f"rank {rank}, {run.schedule.name}" if rank >= 0 else run.schedule.name
            self.moments += [f"{name}: {line}" for line in last_moments(flow)]
        self.moments += [f"standard error: {line}" for line in run.ending.stderr.splitlines()[-10:]]
        ranks = {int(flow.log.header["pid"]): f"rank {rank}, " for rank, flow in run.flows.items() if rank >= 0}
        for pid, stack in run.ending.stacks.items():
            self.moments += [f"{ranks.get(pid, '')}stack: {line}" for line in stack.splitlines()]
        return False

    def _claims(self, run: RecordedRun) -> None:
        for rank, flow in run.flows.items():
            self.flows[run.schedule.name, rank] = flow
            self._add(rank, written_though_read(run.schedule.name, flow))
            self._add(rank, changed_between(run.schedule.name, flow))
            seen = flow.before[1] | flow.after[1] | ~flow.has_function[flow.task]
            own = (flow.mode & (probe_log.MODE_SCRATCH | probe_log.MODE_REDUX)) != 0
            self.totals["accesses"] += len(flow.accesses)
            self.totals["unseen tasks"] += max(0, int(flow.log.header["unseen_tasks"]))
            self.totals["unseen"] += int((~seen & ~own & (flow.start_ns[flow.task] >= 0)).sum())

    def _compare(self, run: RecordedRun, reference: RecordedRun) -> bool:
        """Compare a run with the reference; return whether others can be compared too."""
        name = run.schedule.name
        for rank in reference.flows.keys() - run.flows.keys():
            sentence = f"rank {rank} recorded nothing, in the reference schedule it did"
            self._add(rank, [ProgramFinding(Fault.OTHER_TASKS, name, sentence)])
            return False
        compared = self._compared(run, reference)
        differs = any(comparison.different or comparison.findings for comparison in compared.values())
        if run.schedule is not probe_schedules.REPEATED and self.is_steady is None and differs:
            self.is_steady = self._follows(probe_schedules.REPEATED, reference)
            if not self.is_steady:
                return False
            compared = self._compared(run, reference)
        for rank, comparison in compared.items():
            flow, other = reference.flows[rank], run.flows[rank]
            self._count(comparison)
            found = list(comparison.findings)
            if run.schedule is probe_schedules.REPEATED:
                found = [_not_deterministic(finding) for finding in found]
                if comparison.other_arguments is not None:
                    self.unsteady[rank] = comparison.other_arguments
            elif run.schedule.poison:
                found = list(explain_poison(flow, other, found))
            else:
                found += changed_between(name, other)
                found += () if other.is_nested else broken_order(name, other)
                self.flows[name, rank] = other
            if self.tolerance is not None:
                found += beyond_tolerance(self.tolerance, flow, other, comparison, name)
            self._add(rank, found)
        return not any(finding.kind.forbids_comparison for finding in self.findings)

    def _compared(self, run: RecordedRun, reference: RecordedRun) -> dict[int, RunComparison]:
        # Free orders have made no difference between two runs of the reference schedule: poison may be what makes one.
        is_same_order = run.schedule is probe_schedules.POISONED and self.totals["tolerated"] == 0
        name = run.schedule.name
        return compare_ranks(reference.flows, run.flows, name, self.unsteady, is_same_order=is_same_order)

    def _minimised(self, findings: Sequence[ProgramFinding], reference: RecordedRun) -> Iterator[ProgramFinding]:
        """Tell of findings in perturbed schedules two tasks whose order is enough; tasks of ranks aren't looked at."""
        minimiser = Minimiser(next(iter(reference.flows.values())), self._run_again)
        for finding in findings:
            other = self.flows.get((finding.schedule, -1)) if finding.kind in MINIMISED else None
            yield finding if other is None else minimiser.minimised(finding, other)

    def _with_first_elements(self, findings: Iterable[ProgramFinding]) -> list[ProgramFinding]:
        """Tell the first differing element of the first findings about other outputs.

        Of those about poison, drop the ones of which a look at the bytes shows that the task has only left poison.
        """
        result, left = [], Counter(dict.fromkeys((Fault.OUTPUT_DIFFERS, Fault.WRITTEN_READ), _MOST_FIRST_ELEMENTS))
        for finding in findings:
            if left[finding.kind] == 0:
                result.append(finding)
                continue
            schedule = schedule_of(finding.again or finding.schedule)
            if finding.kind is Fault.OUTPUT_DIFFERS:
                result.append(with_first_element(finding, schedule, self._run_again))
            elif has_read_poison(finding, schedule, self._run_again):
                result.append(finding)
            else:
                left[finding.kind] += 1
            left[finding.kind] -= 1
            for folder in self.directory.glob("again-*"):
                self._remove(folder)
        return result

    def _replay(self, finding: ProgramFinding) -> str:
        """Return a command that runs the schedule with a finding again."""
        words = shlex.quote(finding.again or finding.schedule)
        options = f"--workers {self.workers}" + " --sums ordered" * self.ordered
        return f"starpullm probe {options} --replay {words} -- {shlex.join(self.command)}"

    def _count(self, comparison: RunComparison) -> None:
        for name in ("outputs", "different", "tolerated"):
            self.totals[name] += getattr(comparison, name)
        self.totals["handles"] = max(self.totals["handles"], comparison.handles)

    def _unseen(self) -> Iterator[str]:
        """Yield what couldn't be seen of the program, about which nothing is said therefore."""
        if self.totals["unseen tasks"]:
            tasks = counted(self.totals["unseen tasks"], "task")
            yield f"{tasks} in scheduling contexts with another policy, or none, as parallel workers"
        if not self.totals["accesses"]:
            yield "any contents, as no task has data: only how the program ended was compared"
        if accesses := self.totals["unseen"]:
            yield f"the contents of {counted(accesses, 'access')} can't be read"
        if never := never_ran(list(self.flows.values())):
            yield f"{counted(sum(never.values()), 'implementation')} never ran, of {', '.join(never)}"

    def _result(self, reference: RecordedRun) -> ProbeResult:
        explained = _BY_UNSEEN_TASKS if self.totals["unseen tasks"] else ()
        found = first_of_each([one for one in self.findings if not (one.kind.is_note or one.kind in explained)])
        if not any(flow.is_nested for flow in reference.flows.values()):
            found = self._with_first_elements(self._minimised(found, reference))
        found, excused, unused = split_intended(found, self.intended)
        faulty = {finding.codelet for finding in found if finding.kind.is_declaration}
        notes = [finding for finding in self.findings if finding.kind.is_note and finding.codelet not in faulty]
        notes = first_of_each(notes)
        notes += never_changed(list(self.flows.values()))
        is_unlike = any(one.kind.forbids_comparison or one.kind is Fault.ENDING for one in found)
        surroundings = (*reference.surroundings, no_input(), self.files.leavings() if is_unlike else "")
        totals = self.totals
        found, notes = (with_places(findings, reference.flows) for findings in (found, notes))
        unseen = tuple(self._unseen())
        outcome, sentence = Outcome.PASSED, verdict(found, excused, unseen)
        if found:
            is_forbidden = all(finding.kind.forbids_comparison for finding in found)
            outcome = Outcome.NOT_COMPARABLE if is_forbidden else Outcome.FAILED
        elif totals["outputs"] == 0 and totals["accesses"]:
            raise InvalidArgumentError(f"{program_of(self.command)}: {nothing_to_compare(reference.flows.values())}")
        elif reference.num_workers == 1:
            outcome = Outcome.NOT_COMPARABLE
            sentence = "not comparable: StarPU had one worker, so no two tasks ran at the same time"
        return ProbeResult(
            outcome=outcome,
            sentence=sentence,
            compared=totals["outputs"] or len(self.seconds),
            unit="contents of handles" if totals["outputs"] else "endings",
            measured=len(found),
            command=self.command,
            starpu_version=next(iter(reference.flows.values())).log.starpu_version,
            num_ranks=len(reference.flows) if min(reference.flows) >= 0 else 0,
            num_workers=reference.num_workers,
            surroundings=tuple(filter(None, surroundings)),
            num_tasks=reference.num_tasks,
            num_compared_handles=totals["handles"],
            runs=len(self.seconds) - 1,
            different=totals["different"],
            tolerated=totals["tolerated"],
            tolerance="" if self.tolerance is None else str(self.tolerance),
            unseen=unseen,
            watched=self.watched,
            findings=tuple(found),
            notes=tuple(notes),
            intended=excused,
            not_found=unused,
            replays=tuple(map(self._replay, found[:1])),
            last_moments=tuple(self.moments),
            seconds=self.seconds,
        )


def _not_deterministic(finding: ProgramFinding) -> ProgramFinding:
    """Say of a difference between two runs of one schedule that no schedule has made it."""
    if finding.kind is Fault.INPUT_FROM_OUTSIDE:
        return replace(finding, kind=Fault.CHANGING_INPUT)
    if finding.kind is not Fault.OUTPUT_DIFFERS:
        return finding
    sentence = finding.sentence.partition(", although")[0]
    return replace(
        finding,
        kind=Fault.NOT_DETERMINISTIC,
        sentence=f"{sentence}, although its inputs, and the order of all tasks, were the same: it isn't deterministic "
        "by itself (a clock, a random number, an address, memory that nobody wrote)",
        suspects=(),
    )
