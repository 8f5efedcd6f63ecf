"""The result of a probe: what the runs have shown, and what more runs tell of the first findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.probe.diagnose_missing_log import program_of
from starpullm.probe.elements import Tolerance
from starpullm.probe.findings import Fault, ProgramFinding, first_of_each
from starpullm.probe.first_difference import MOST_FIRST_ELEMENTS, with_first_element
from starpullm.probe.intended import Intended, split_intended
from starpullm.probe.minimise import MINIMISED, Minimiser
from starpullm.probe.observations import Observations
from starpullm.probe.places import with_places
from starpullm.probe.probe_result import ProbeResult, verdict
from starpullm.probe.program_runs import ProgramRuns
from starpullm.probe.program_tasks import counted
from starpullm.probe.recorded import RecordedRun
from starpullm.probe.replay import schedule_of
from starpullm.probe.single_run_checks import never_changed, nothing_to_compare
from starpullm.probe.surroundings import no_input

_BY_UNSEEN_TASKS = (Fault.CHANGED_BETWEEN, Fault.INPUT_CHANGED, Fault.INPUT_FROM_OUTSIDE)
"""Findings that tasks which weren't seen explain."""


def conclude(
    runs: ProgramRuns,
    seen: Observations,
    reference: RecordedRun,
    tolerance: Tolerance | None,
    intended: Sequence[Intended],
) -> ProbeResult:
    """Return the result, while the reference schedule's records exist."""
    faults = _faults(runs, seen, reference)
    found, excused, unused = split_intended([fault for fault in faults if not fault.kind.is_note], intended)
    addresses = [fault for fault in faults if fault.kind.is_note]
    notes = [*addresses, *_notes(seen, found)]
    is_unlike = seen.totals["left_out"] or any(one.kind.forbids_comparison or one.kind is Fault.ENDING for one in found)
    leavings = runs.files.leavings() if is_unlike else ""
    surroundings = (*reference.surroundings, no_input(), seen.output_left_out(), leavings)
    found, notes = (with_places(findings, reference.flows) for findings in (found, notes))
    found = [_completed(finding, runs.replay(finding.schedule)) for finding in found]
    totals, unseen = seen.totals, tuple(seen.unseen(is_bounded=tolerance is not None))
    if count := sum(note.count for note in addresses):
        unseen += (f"{counted(count, 'content')} that differ in addresses, and what depends on them",)
    bound = f" by more than {tolerance}" if totals["tolerated"] else ""
    outcome, sentence = Outcome.PASSED, verdict(found, excused, unseen, bound if tolerance else "")
    if found:
        is_forbidden = all(finding.kind.forbids_comparison for finding in found)
        outcome = Outcome.NOT_COMPARABLE if is_forbidden else Outcome.FAILED
    elif totals["outputs"] == 0 and totals["contents"]:
        name = program_of(runs.command)
        raise InvalidArgumentError(f"{name}: {nothing_to_compare(list(reference.flows.values()))}")
    elif reference.num_workers == 1:
        outcome = Outcome.NOT_COMPARABLE
        sentence = "not comparable: StarPU had one worker, so no two tasks ran at the same time"
    return ProbeResult(
        outcome=outcome,
        sentence=sentence,
        compared=totals["outputs"] or len(runs.seconds),
        unit="contents of handles" if totals["outputs"] else "endings",
        measured=len(found),
        command=runs.command,
        starpu_version=next(iter(reference.flows.values())).log.starpu_version,
        num_ranks=len(reference.flows) if min(reference.flows) >= 0 else 0,
        num_workers=reference.num_workers,
        surroundings=tuple(filter(None, surroundings)),
        num_tasks=reference.num_tasks,
        num_compared_handles=totals["handles"],
        runs=len(runs.seconds) - 1,
        different=totals["different"],
        tolerated=totals["tolerated"],
        tolerated_contents=seen.tolerated_contents() if totals["tolerated"] else "",
        tolerance="" if tolerance is None else str(tolerance),
        unseen=unseen,
        watched=seen.watched,
        findings=tuple(found),
        notes=tuple(notes),
        intended=excused,
        not_found=unused,
        last_moments=tuple(seen.moments),
        seconds=runs.seconds,
    )


def _completed(finding: ProgramFinding, again: str) -> ProgramFinding:
    """Return a finding with the evidence that comes last: what follows from it, and how to see it again."""
    evidence = {} if finding.effect is None else {"effect": str(finding.effect)}
    if finding.count > 1:
        evidence["more"] = f"{finding.count - 1} like it"
    return finding.with_evidence(**evidence, again=again)


def _faults(runs: ProgramRuns, seen: Observations, reference: RecordedRun) -> list[ProgramFinding]:
    """Return the first finding of each kind and codelet, the first ones with what more runs tell of them."""
    explained = _BY_UNSEEN_TASKS if seen.totals["unseen tasks"] else ()
    found = first_of_each([one for one in seen.findings if not (one.kind.is_note or one.kind in explained)])
    minimiser, left = Minimiser(next(iter(reference.flows.values())), runs.run_again), MOST_FIRST_ELEMENTS
    are_nested = any(flow.is_nested for flow in reference.flows.values())
    for kind in reversed(MINIMISED):  # what differs may follow from an input that changed
        for number, finding in enumerate(() if are_nested else found):
            if finding.kind is kind and (finding.schedule, -1) in seen.flows:  # tasks of ranks aren't looked at
                found[number] = minimiser.minimised(finding, seen.flows[finding.schedule, -1])
            if kind is found[number].kind is Fault.OUTPUT_DIFFERS and left > 0:
                left -= 1
                found[number] = with_first_element(found[number], schedule_of(found[number].schedule), runs.run_again)
                runs.forget_runs_again()
        found = first_of_each(found, reference.flows)
    return found


def _notes(seen: Observations, found: Iterable[ProgramFinding]) -> list[ProgramFinding]:
    """Return the first note of each kind and codelet, without those of codelets whose declarations are at fault."""
    faulty = {finding.codelet for finding in found if finding.kind.is_declaration}
    notes = [finding for finding in seen.findings if finding.kind.is_note and finding.codelet not in faulty]
    return [*first_of_each(notes), *never_changed(list(seen.flows.values()))]
