"""Runs a program in the reference schedule and in perturbed ones, and judges what was recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from starpullm.errors import InvalidArgumentError
from starpullm.probe import probe_schedules
from starpullm.probe.compare import RunComparison, compare_ranks
from starpullm.probe.conclusion import conclude
from starpullm.probe.diagnose_missing_log import program_of, what_it_said
from starpullm.probe.elements import Tolerance, parse_tolerance
from starpullm.probe.findings import Fault, ProgramFinding, first_of_each
from starpullm.probe.first_difference import MOST_FIRST_ELEMENTS, with_first_element
from starpullm.probe.intended import read_intended
from starpullm.probe.observations import BY_ITSELF, Observations
from starpullm.probe.order import broken_order
from starpullm.probe.poison import ReadAccess, explain_poison, of_unwritten
from starpullm.probe.probe_result import ProbeResult
from starpullm.probe.probe_schedules import REFERENCE, REPEATED, ProbeSchedule, number_of_devices
from starpullm.probe.program_runs import ProgramRuns, TimeLimits
from starpullm.probe.program_tasks import TaskFlow, counted
from starpullm.probe.recorded import RecordedRun
from starpullm.probe.single_run_checks import changed_between, not_waited_for, written_though_read
from starpullm.probe.surroundings import check_arguments, no_input
from starpullm.probe.tolerance import beyond_tolerance

DEFAULT_RUNS = 5
DEFAULT_WORKERS = 4
NUM_STANDARD_RUNS = 5
"""The reference schedule, watched for undeclared accesses, with poison of two kinds, and with tasks at once."""

_LONGEST_DELAY_US = 5000
_DELAYS_US = 1_000_000
"""The delays of all tasks of a run together, about, if they came one after the other."""


_BY_ITSELF = "equal inputs, and the same order of all tasks: a clock, a random number, an address, memory nobody wrote"


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
    devices: int | str = 0,
    poison: bool = True,
    keep: Path | None = None,
    intended: Path | None = None,
    expect_status: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> ProbeResult:
    """Judge a StarPU program: whether its results depend on the schedule, and its tasks do what they declare.

    Parameters
    ----------
    command
        The program and its arguments, or ``mpirun -n N`` and them. It is run 5 + ``runs`` times; once more if a run
        differs, and again for findings of which the access or the first differing element is to be told. Each run gets
        the same standard input.
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
    devices
        OpenCL devices of which perturbed schedules draw the tasks, or ``"all"``.
    poison
        Whether to run with poison in what tasks declare as written only.
    keep
        A folder that is made, in which logs stay: one folder for each run, with the ends of the program's output.
    intended
        A file of findings about declarations that are no faults, with their reasons: see docs/probe.md.
    expect_status
        With which the program ends if all is well.
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
    num_devices = number_of_devices(devices)
    known = read_intended(intended) if intended else ()
    with _folder_of_logs(keep) as directory:
        contents = probe_schedules.KEEP_FROM_FREE if bound is not None else ""
        limits, is_ordered = TimeLimits(time_limit), sums == "ordered"
        program = ProgramRuns(
            tuple(command), workers, directory, limits, progress, contents, keep is not None, is_ordered, num_devices
        )
        judge = _Judge(program, bound, Observations(statuses=frozenset({expect_status})))
        with judge.runs.run(probe_schedules.REFERENCE) as reference:
            judge.judge(reference, runs, seed, poison)
            return conclude(judge.runs, judge.seen, reference, bound, known)


@contextmanager
def _folder_of_logs(keep: Path | None) -> Iterator[Path]:
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
    """Runs one schedule after the other, and compares each with the reference schedule.

    ``is_steady`` says whether that gives the same again, which is asked before a run that differs is judged; None: it
    wasn't asked yet.
    """

    runs: ProgramRuns
    tolerance: Tolerance | None
    seen: Observations = field(default_factory=Observations)
    is_steady: bool | None = None

    def judge(self, reference: RecordedRun, runs: int, seed: int, poison: bool) -> None:
        """Judge the reference schedule and then the others; the first run without poison that fails is the last."""
        self.seen.add_reference(reference)
        if reference.num_tasks == 0 and reference.is_complete:
            others = f", but {next(self.seen.unseen())}" if self.seen.totals["unseen tasks"] else ""
            lifts = "; ".join(filter(None, ("expected arguments, or input, with which it does", no_input())))
            raise InvalidArgumentError(
                f"{program_of(self.runs.command)}: submitted no task with a codelet in a scheduling context without a "
                f"policy of its own (it {reference.ending}){others}, {lifts}{what_it_said(reference.ending.stderr)}"
            )
        if not self.seen.add_ending(reference, reference, self.runs.run_bare):
            return
        self._watch(reference)
        if poison and self.is_steady is not False:
            self._poisoned_runs(reference)
        if self.is_steady is False:
            return
        perturbed = probe_schedules.perturbed(runs, seed, reference.num_workers, _delay_us(reference))
        all(self._follows(schedule, reference) for schedule in (*perturbed, probe_schedules.PROMPT))

    def _watch(self, reference: RecordedRun) -> None:
        """Look for accesses that tasks don't declare."""
        with self.runs.run(probe_schedules.WATCHED) as run:
            if not self.seen.add_watched(run, reference):
                self.is_steady = self._follows(probe_schedules.REPEATED, reference)

    def _follows(self, schedule: ProbeSchedule, reference: RecordedRun) -> bool:
        """Run a schedule and compare it; return whether others can be compared too."""
        with self.runs.run(schedule) as run:
            if self.seen.add_ending(run, reference):
                return self._compare(run, reference)
            self._compare_remains(run, reference)
        return False

    def _poisoned_runs(self, reference: RecordedRun) -> None:
        """Run with both kinds of poison, and compare the two runs with each other.

        They end by themselves or not; other schedules are compared all the same.
        """
        first, second = probe_schedules.POISONED
        with self.runs.run(first) as one, self.runs.run(second) as two:
            have_ended_well = [self.seen.add_ending(run, reference) for run in (one, two)]
            if not reference.flows.keys() == one.flows.keys() == two.flows.keys():
                return
            compared = self._compared(one, two)
            has_findings = any(comparison.findings for comparison in compared.values())
            has_findings |= any(self.seen.other_output(one, other) for other in (two, reference))
            if self.is_steady is None and has_findings:
                self.is_steady = self._follows(probe_schedules.REPEATED, reference)
                compared = self._compared(one, two)
            if self.is_steady is False:
                return
            read_access = ReadAccess(self.runs.run_again)
            for rank, comparison in compared.items():
                flows = one.flows[rank], two.flows[rank]
                self.seen.add_comparison(rank, comparison)
                found = self._without_addresses(flows[0], comparison.findings, first, second)
                found += self._other_output(one, two, reference) or self._other_output(one, reference, reference)
                self.seen.findings += explain_poison(*flows, found, read_access)
                if all(have_ended_well):
                    self.seen.findings += of_unwritten(first.name, one.flows[rank])

    def _compare_remains(self, run: RecordedRun, reference: RecordedRun) -> None:
        """Compare what a run left that ended otherwise: a task that did something else may be why.

        That tasks are missing needs no finding of its own.
        """
        self._compare(run, reference)
        missing = Fault.OTHER_TASKS, run.schedule.name
        self.seen.findings = [one for one in self.seen.findings if (one.kind, one.schedule) != missing]

    def _compare(self, run: RecordedRun, reference: RecordedRun) -> bool:
        """Compare a run with the reference; return whether others can be compared too."""
        for rank in reference.flows.keys() - run.flows.keys():
            sentence = f"rank {rank} recorded nothing, in the reference schedule it did"
            self.seen.findings.append(ProgramFinding(sentence, kind=Fault.OTHER_TASKS, schedule=run.schedule.name))
            return False
        compared = self._compared(run, reference)
        differs = any(comparison.different or comparison.findings for comparison in compared.values())
        is_repeated, output = run.schedule is probe_schedules.REPEATED, self.seen.other_output(run, reference)
        if is_repeated and output:
            self.seen.leave_out_output(BY_ITSELF)
        if not is_repeated and self.is_steady is None and (differs or output):
            self.is_steady = self._follows(probe_schedules.REPEATED, reference)
            if not self.is_steady:
                return False
            compared = self._compared(run, reference)
        for rank, comparison in compared.items():
            self.seen.add_comparison(rank, comparison)
            self.seen.findings += self._faults(run, rank, reference.flows[rank], comparison)
        is_explained = differs or any(comparison.is_reordered for comparison in compared.values())
        self.seen.findings += () if is_explained else self._other_output(run, reference, reference)
        return not any(finding.kind.forbids_comparison for finding in self.seen.findings)

    def _other_output(self, run: RecordedRun, base: RecordedRun, reference: RecordedRun) -> list[ProgramFinding]:
        """Return a finding about other output, unless a run that can't have other results has other output, too."""
        schedule, why = probe_schedules.LONGER, "it changes with the time that tasks take"
        if run.schedule.max_workers > 1:
            schedule, why = probe_schedules.IN_TURN, "it says which workers run tasks, or how long"
        if self.seen.other_output(run, base) and schedule.name not in self.runs.seconds:
            with self.runs.run(replace(schedule, delay_us=_delay_us(reference))) as control:
                if control.ending.words != reference.ending.words:
                    self.seen.leave_out_output(why, on_one=not schedule.in_turn)
        return self.seen.other_output(run, base)

    def _faults(
        self, run: RecordedRun, rank: int, flow: TaskFlow, comparison: RunComparison
    ) -> Iterator[ProgramFinding]:
        """Yield what a comparison with the reference's flow means in a run of this kind, and what that shows."""
        name, other = run.schedule.name, run.flows[rank]
        if run.schedule is probe_schedules.REPEATED:
            num_left_out, found = flow.num_tasks, comparison.findings
            in_addresses = bool(found) and not self._without_addresses(flow, found, REFERENCE, REPEATED)
            if comparison.unsteady is not None:
                unsteady = comparison.unsteady.with_dependent_tasks(flow)
                self.seen.unsteady[rank] = replace(unsteady, contents=unsteady.contents & (not in_addresses))
                num_left_out = int(self.seen.unsteady[rank].contents.sum())
            # Addresses mean nothing in any schedule.
            yield from found if in_addresses else (_unsteady(one, num_left_out, flow.num_tasks) for one in found)
        else:
            yield from comparison.findings
            yield from written_though_read(name, other, is_serial=False)
            yield from not_waited_for(name, other)
            yield from changed_between(name, other)
            yield from () if other.is_nested else broken_order(name, other)
            self.seen.flows[name, rank] = other
        if self.tolerance is not None:
            yield from beyond_tolerance(self.tolerance, flow, other, comparison, name)

    def _without_addresses(
        self, flow: TaskFlow, findings: Sequence[ProgramFinding], base: ProbeSchedule, schedule: ProbeSchedule
    ) -> list[ProgramFinding]:
        """Return findings about more than addresses of memory, as far as further runs of both schedules tell."""
        first = [] if flow.is_nested else [one for one in first_of_each(findings) if one.kind is Fault.OUTPUT_DIFFERS]
        again = [with_first_element(one, schedule, self.runs.run_again, base) for one in first[:MOST_FIRST_ELEMENTS]]
        self.runs.forget_runs_again()
        left_out = [one.codelet for one in again if one.kind.is_note]
        return [one for one in findings if one.kind is not Fault.OUTPUT_DIFFERS or one.codelet not in left_out]

    def _compared(self, run: RecordedRun, reference: RecordedRun) -> dict[int, RunComparison]:
        # Free orders have made no difference between two runs of the reference schedule: poison may be what makes one.
        is_same_order = run.schedule in probe_schedules.POISONED and self.seen.totals["tolerated"] == 0
        free = {"is_same_order": is_same_order, "bounds_devices": self.tolerance is not None}
        return compare_ranks(reference.flows, run.flows, run.schedule.name, self.seen.unsteady, **free)


def _delay_us(reference: RecordedRun) -> int:
    return min(_LONGEST_DELAY_US, 8 * _DELAYS_US // reference.num_tasks)


def _unsteady(finding: ProgramFinding, num_left_out: int, num_tasks: int) -> ProgramFinding:
    """Say of a difference between two runs of one schedule that no schedule has made it.

    It is a note if at least half of the tasks are left, for which it has no meaning.
    """
    kind, sentence, evidence = Fault.CHANGING_INPUT, finding.sentence, dict(finding.evidence)
    if finding.kind is Fault.OUTPUT_DIFFERS:
        kind, sentence = Fault.NOT_DETERMINISTIC, "leaves other contents from run to run"
        evidence = {"handle": evidence["handle"], "evidence": _BY_ITSELF}
    elif finding.kind is not Fault.INPUT_FROM_OUTSIDE:
        return finding
    if 2 * num_left_out <= num_tasks:
        kind = Fault.NOT_CHECKED
        evidence["left out"] = f"it and what depends on it, {counted(num_left_out, 'task')}"
    return replace(finding, kind=kind, sentence=sentence, evidence=evidence, suspects=())
