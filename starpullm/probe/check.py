"""Runs a program in the reference schedule and in disturbed ones, and judges what was recorded."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.files import probe_log
from starpullm.probe import schedules
from starpullm.probe.claims import changed_between, never_changed, written_though_read
from starpullm.probe.compare import Comparison, compare
from starpullm.probe.findings import Finding, Kind, first_of_each
from starpullm.probe.flow import Flow
from starpullm.probe.order import broken_order
from starpullm.probe.poison import explain_poison
from starpullm.probe.recorded import RecordedRun, last_moments, record
from starpullm.probe.result import ProbeResult
from starpullm.probe.schedules import Schedule

DEFAULT_RUNS = 5
DEFAULT_WORKERS = 4
DEFAULT_TIME_LIMIT = 300.0
NUM_STANDARD_RUNS = 3
"""The reference schedule, the same again, and with poison."""

_LONGEST_DELAY_US = 5000
_DELAYS_US = 2_000_000
"""The delays of all tasks of a run together, about, if they came one after the other."""


def probe_program(
    command: Sequence[str],
    *,
    runs: int = DEFAULT_RUNS,
    seed: int = 1,
    workers: int = DEFAULT_WORKERS,
    time_limit: float = DEFAULT_TIME_LIMIT,
    progress: Callable[[], None] = lambda: None,
) -> ProbeResult:
    """Judge a StarPU program: whether its results depend on the schedule, and its tasks do what they declare.

    Parameters
    ----------
    command
        The program and its arguments. It is run 3 + ``runs`` times.
    runs
        In disturbed schedules, at least 1.
    seed
        Of the first of them, at least 1; the others follow.
    workers
        The CPU workers that StarPU is given in every run, also in the reference schedule, which uses one of them.
    time_limit
        Seconds for one run.
    progress
        Is called after each run.

    Raises
    ------
    InvalidArgumentError
        If an argument is out of range, or the program can't be judged: it can't be started, it isn't a StarPU program,
        it can't load the probe, or it submits no task. The sentence says which.
    RuntimeFailureError
        If a process of the program can't be killed.
    """
    for name, value in (("runs", runs), ("seed", seed), ("workers", workers)):
        if value < 1:
            raise InvalidArgumentError(f"{name}: found {value}, expected at least 1")
    if not time_limit > 0:
        raise InvalidArgumentError(f"time_limit: found {time_limit:g}, expected more than 0 seconds")
    with tempfile.TemporaryDirectory(prefix="starpullm-probe-", ignore_cleanup_errors=True) as directory:
        judge = _Judge(tuple(command), Path(directory), workers, time_limit, progress)
        return judge.verdict(runs, seed)


class _Judge:
    """Runs one schedule after the other, and collects what they show."""

    def __init__(
        self,
        command: tuple[str, ...],
        directory: Path,
        workers: int,
        time_limit: float,
        progress: Callable[[], None],
    ) -> None:
        self._command, self._directory, self._workers = command, directory, workers
        self._time_limit, self._progress = time_limit, progress
        self._findings: list[Finding] = []
        self._moments: list[str] = []
        self._seconds: dict[str, float] = {}
        self._totals: Counter[str] = Counter()
        self._flows: list[Flow] = []

    def verdict(self, runs: int, seed: int) -> ProbeResult:
        """Return the result of all runs; the first run that doesn't end by itself is the last."""
        reference = self._run(schedules.REFERENCE, "reference")
        status = reference.ending.status
        if reference.num_tasks == 0 and status is not None and status >= 0:
            raise InvalidArgumentError(
                f"{self._command[0]}: submitted no task to StarPU (it {reference.ending}), expected at least one in a "
                "scheduling context without a policy of its own; nothing would be compared"
            )
        has_ended_well = self._has_ended_well(reference, reference)
        self._claims(reference)
        if has_ended_well:
            self._other_runs(reference, runs, seed)
        return self._result(reference)

    def _other_runs(self, reference: RecordedRun, runs: int, seed: int) -> None:
        delay_us = min(_LONGEST_DELAY_US, 8 * _DELAYS_US // reference.num_tasks)
        others = [
            schedules.REPEATED,
            schedules.POISONED,
            *schedules.disturbed(runs, seed, self._workers, delay_us),
        ]
        for number, schedule in enumerate(others):
            run = self._run(schedule, str(number))
            if not self._has_ended_well(run, reference):
                self._compare_remains(run, reference)
                return
            if not self._compare(run, reference):
                return
            shutil.rmtree(self._directory / str(number), ignore_errors=True)

    def _compare_remains(self, run: RecordedRun, reference: RecordedRun) -> None:
        """Compare what a run left that ended otherwise: a task that did something else may be why.

        That tasks are missing needs no finding of its own.
        """
        known = len(self._findings)
        self._compare(run, reference)
        self._findings[known:] = [one for one in self._findings[known:] if one.kind is not Kind.OTHER_TASKS]

    def _run(self, schedule: Schedule, folder: str) -> RecordedRun:
        run = record(self._command, schedule, self._directory / folder, self._workers, self._time_limit)
        self._seconds[schedule.name] = run.ending.seconds
        self._progress()
        return run

    def _has_ended_well(self, run: RecordedRun, reference: RecordedRun) -> bool:
        """Record how a run ended if that is a fault; return whether it can be compared."""
        status = run.ending.status
        if status is not None and status == (reference.ending.status if run is not reference else 0):
            return True
        sentence = f"the program {run.ending}"
        if run is not reference:
            sentence += f"; in the reference schedule it {reference.ending}"
        self._findings.append(Finding(Kind.ENDING, run.schedule.name, sentence))
        if status is not None and status >= 0 and run is reference:
            return True  # its own idea of failure, but it ran to its end
        for rank, flow in run.flows.items():
            self._moments += [f"{run.name(rank)}: {line}" for line in last_moments(flow)]
        self._moments += [f"standard error: {line}" for line in run.ending.stderr.splitlines()[-10:]]
        self._moments += [f"stack: {line}" for line in run.ending.stacks.splitlines()]
        return False

    def _claims(self, run: RecordedRun) -> None:
        for rank, flow in run.flows.items():
            self._flows.append(flow)
            self._findings += written_though_read(run.name(rank), flow)
            self._findings += changed_between(run.name(rank), flow)
            seen = flow.before[1] | flow.after[1] | ~flow.has_function[flow.task]
            own = (flow.mode & (probe_log.MODE_SCRATCH | probe_log.MODE_REDUX)) != 0
            self._totals["unseen"] += int((~seen & ~own & (flow.start_ns[flow.task] >= 0)).sum())

    def _compare(self, run: RecordedRun, reference: RecordedRun) -> bool:
        """Compare a run with the reference; return whether others can be compared too."""
        for rank, flow in reference.flows.items():
            if rank not in run.flows:
                sentence = f"rank {rank} recorded nothing, in the reference schedule it did"
                self._findings.append(Finding(Kind.OTHER_TASKS, run.schedule.name, sentence))
                return False
            comparison = compare(flow, run.flows[rank], run.name(rank))
            self._count(comparison)
            found = list(comparison.findings)
            if run.schedule is schedules.REPEATED:
                found = [_not_deterministic(finding) for finding in found]
            elif run.schedule.poison:
                found = list(explain_poison(flow, run.flows[rank], found))
            else:
                found += changed_between(run.name(rank), run.flows[rank])
                found += broken_order(run.name(rank), run.flows[rank])
                self._flows.append(run.flows[rank])
            self._findings += found
        return not any(finding.kind.forbids_comparison for finding in self._findings)

    def _count(self, comparison: Comparison) -> None:
        for name in ("outputs", "different", "tolerated"):
            self._totals[name] += getattr(comparison, name)
        self._totals["handles"] = max(self._totals["handles"], comparison.handles)

    def _result(self, reference: RecordedRun) -> ProbeResult:
        found = first_of_each([finding for finding in self._findings if not finding.kind.is_note])
        notes = first_of_each([finding for finding in self._findings if finding.kind.is_note])
        notes += never_changed(self._flows)
        forbidden = [finding for finding in found if finding.kind.forbids_comparison]
        totals = self._totals
        outcome = Outcome.PASSED
        if found:
            outcome = Outcome.NOT_COMPARABLE if len(forbidden) == len(found) else Outcome.FAILED
        elif totals["outputs"] == 0:
            raise InvalidArgumentError(
                f"{self._command[0]}: no task left contents that can be read (see the modes of its accesses), expected "
                "at least one; nothing would be compared"
            )
        words = {Outcome.PASSED: "same", Outcome.FAILED: "differs", Outcome.NOT_COMPARABLE: "not comparable"}
        first = next(iter(reference.flows.values()))
        runs = len(self._seconds) - 1
        return ProbeResult(
            name="probe",
            outcome=outcome,
            finding=f"{words[outcome]}: {reference.num_tasks} tasks, {runs} runs beside the reference schedule, "
            f"{totals['outputs']} contents of {totals['handles']} handles compared, {totals['different']} differ, "
            f"{len(found)} findings",
            compared=totals["outputs"],
            measured=len(found),
            command=self._command,
            starpu_version=first.log.starpu_version,
            num_tasks=reference.num_tasks,
            num_handles=sum(len(flow.handle_of_log) for flow in reference.flows.values()),
            runs=runs,
            different=totals["different"],
            tolerated=totals["tolerated"],
            unseen=totals["unseen"],
            findings=tuple(found),
            notes=tuple(notes),
            last_moments=tuple(self._moments),
            seconds=self._seconds,
        )


def _not_deterministic(finding: Finding) -> Finding:
    """Say of a difference between two runs of one schedule that no schedule has made it."""
    if finding.kind is Kind.INPUT_FROM_OUTSIDE:
        return replace(finding, kind=Kind.CHANGING_INPUT)
    if finding.kind is not Kind.OUTPUT_DIFFERS:
        return finding
    sentence = finding.sentence.partition(", although")[0]
    return replace(
        finding,
        kind=Kind.NOT_DETERMINISTIC,
        sentence=f"{sentence}, although its inputs, and the order of all tasks, were the same: it isn't deterministic "
        "by itself (a clock, a random number, an address, memory that nobody wrote)",
        suspects=(),
    )
