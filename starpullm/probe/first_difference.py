"""What differs in a finding's contents, byte by byte: both schedules are run again for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from starpullm.probe.elements import first_difference
from starpullm.probe.findings import Fault, ProgramFinding
from starpullm.probe.probe_schedules import REFERENCE, ProbeSchedule
from starpullm.probe.program_tasks import TaskFlow

MOST_FIRST_ELEMENTS = 3
"""Findings for which schedules are run again."""

_ATTEMPTS = 3
"""Runs of the perturbed schedule: its seed decides the choice among ready tasks, the machine which tasks are ready."""

RunAgain = Callable[[ProbeSchedule, str, ProgramFinding], TaskFlow | None]


def with_first_element(
    finding: ProgramFinding, schedule: ProbeSchedule, run_again: RunAgain, base: ProbeSchedule = REFERENCE
) -> ProgramFinding:
    """Return the finding with the first element that differs, from runs in which this task's contents are recorded.

    ``run_again`` runs a schedule and keeps the contents of one task. If no second run shows the difference, the finding
    says so. It becomes a note if the difference is one of addresses, or may be and isn't shown.
    """
    reference = run_again(base, str(finding.task), finding)
    if reference is None:
        return _not_shown(finding, "the reference schedule didn't run to its end again")
    access = _access(reference, finding)
    why = f"in {_ATTEMPTS} more runs of this schedule it didn't happen again"
    for _ in range(_ATTEMPTS):
        other = run_again(schedule, str(finding.task), finding)
        if other is None:
            why = "this schedule didn't run to its end again"
            break
        if _is_same_fault(reference, other, access):
            return _completed(finding, reference, other, access)
    content = reference.log.bytes_of(int(reference.after[0][access])) or b""
    if reference.log.are_mapped(np.frombuffer(content[: len(content) // 8 * 8], "<u8")).any():
        return _in_addresses(finding, "perhaps in addresses alone, of which the handle holds some")
    return _not_shown(finding, why)


def _access(flow: TaskFlow, finding: ProgramFinding) -> int:
    accesses = np.arange(flow.first[finding.task], flow.first[finding.task + 1])
    return int(accesses[(flow.handle[accesses] == finding.handle) & flow.writes[accesses]][0])


def _is_same_fault(reference: TaskFlow, other: TaskFlow, access: int) -> bool:
    """Return whether the task left other contents there although its inputs were equal, as in the finding."""
    task = int(reference.task[access])
    own = slice(int(reference.first[task]), int(reference.first[task + 1]))
    inputs = [flow.before[0][own][reference.reads[own]] for flow in (reference, other)]
    outputs = [int(flow.after[0][access]) for flow in (reference, other)]
    return bool((inputs[0] == inputs[1]).all()) and outputs[0] != outputs[1]


def _completed(finding: ProgramFinding, reference: TaskFlow, other: TaskFlow, access: int) -> ProgramFinding:
    expected, found = (flow.log.bytes_of(int(flow.after[0][access])) for flow in (reference, other))
    if expected is None or found is None:
        return _not_shown(finding, "the layout of this handle's elements isn't known")
    if len(expected) != len(found):
        return _not_shown(finding, f"there are {len(found)} bytes instead of {len(expected)}")
    if _are_addresses(reference, other, expected, found):
        return _in_addresses(finding, "all words that differ are addresses")
    record = reference.log.handles[reference.handle_of_log[finding.handle]]
    difference = first_difference(expected, found, int(record["element_bytes"]))
    if difference is None:
        return _not_shown(finding, "the recorded bytes are equal: another thread changed them meanwhile")
    return finding.with_element(reference.element_name(finding.handle, difference.element), difference)


def _are_addresses(reference: TaskFlow, other: TaskFlow, expected: bytes, found: bytes) -> bool:
    """Return whether all words that differ were addresses of something, in both runs."""
    whole = len(expected) // 8 * 8
    one, two = (np.frombuffer(content[:whole], "<u8") for content in (expected, found))
    differs = one != two
    if not differs.any() or expected[whole:] != found[whole:]:
        return False
    return bool((reference.log.are_mapped(one[differs]) & other.log.are_mapped(two[differs])).all())


def _in_addresses(finding: ProgramFinding, text: str) -> ProgramFinding:
    """Return a note instead of a finding: addresses mean nothing."""
    evidence = {"handle": finding.evidence["handle"], "evidence": f"{text}; what lies there isn't compared"}
    sentence = "leaves other addresses of memory than in the reference schedule"
    return replace(finding, kind=Fault.NOT_CHECKED, sentence=sentence, evidence=evidence, suspects=())


def _not_shown(finding: ProgramFinding, why: str) -> ProgramFinding:
    return finding.with_evidence(element=f"not known which is the first that differs: {why}")
