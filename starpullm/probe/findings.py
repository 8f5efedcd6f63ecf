"""What the probe can find in a program, with the task and the handle that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from starpullm.checks.result import Finding
from starpullm.probe.elements import ElementDifference
from starpullm.probe.program_tasks import TaskFlow, listed


class Fault(StrEnum):
    """What is wrong, the nearest to the cause first; the value is the word of reports and of ``--json``."""

    UNDECLARED_READ = "undeclared read"
    UNDECLARED_WRITE = "undeclared write"
    READ_WRITTEN = "declared read, but written"
    WRITTEN_READ = "declared written, but read"
    SCRATCH_READ = "scratch memory read, but not written"
    NOT_WRITTEN = "declared written, but nothing was"
    PARTLY_WRITTEN = "declared written, but not all of it was"
    NOT_WAITED = "device not waited for"
    OUTPUT_DIFFERS = "differs"
    CHANGED_BETWEEN = "changed without a declared writer"
    INPUT_CHANGED = "input changed"
    NOT_DETERMINISTIC = "not deterministic"
    CHANGING_INPUT = "input changes from run to run"
    INPUT_FROM_OUTSIDE = "input from outside"
    OTHER_OUTPUT = "other output"
    OTHER_TASKS = "other tasks"
    ORDER = "order"
    ENDING = "ending"
    POISONED_ENDING = "ending with poison"
    BEYOND_TOLERANCE = "beyond the tolerance"
    NOT_BOUNDED = "not bounded"
    LEFT_UNWRITTEN = "declared written, left as it was, and not used"
    NEVER_CHANGED = "declared updated, never changed"
    NOT_CHECKED = "not checked"

    @property
    def is_note(self) -> bool:
        """Whether it is only worth knowing: no result of this program depends on it here."""
        return self in (Fault.LEFT_UNWRITTEN, Fault.NEVER_CHANGED, Fault.NOT_CHECKED)

    @property
    def is_declaration(self) -> bool:
        """Whether a task does something else than it declares, which alone changes no result of this program here."""
        declared = (Fault.READ_WRITTEN, Fault.WRITTEN_READ, Fault.SCRATCH_READ, Fault.NOT_WRITTEN, Fault.PARTLY_WRITTEN)
        seen = (Fault.UNDECLARED_READ, Fault.UNDECLARED_WRITE, Fault.CHANGED_BETWEEN)
        return self in (*declared, *seen, Fault.POISONED_ENDING)

    @property
    def forbids_comparison(self) -> bool:
        """Whether the program has no single result that schedules could be compared with, as far as can be told."""
        return self in (Fault.NOT_DETERMINISTIC, Fault.CHANGING_INPUT, Fault.OTHER_TASKS, Fault.NOT_BOUNDED)


@dataclass(frozen=True, kw_only=True)
class ProgramFinding(Finding):
    """One fault, and where it was seen.

    ``schedule`` is the run in which it was seen. ``task`` is a number in the order of submission, ``codelet`` its name;
    ``handle`` is a number by first use, -1 if the finding is about no handle. ``suspects`` are other tasks that belong
    to it, by name. ``rank`` is -1 in a program without ranks; each rank numbers its own tasks and handles.
    """

    kind: Fault
    schedule: str
    task: int = -1
    codelet: str = ""
    handle: int = -1
    count: int = 1
    """Findings of this kind with the same codelet; this is the first of them."""
    effect: ProgramFinding | None = None
    """The first finding that follows from this one."""
    suspects: tuple[str, ...] = ()
    rank: int = -1
    element: int = -1
    """The first element that differs, counted from 0 in the order of the handle's dimensions; -1: not known."""
    expected: str = ""
    found: str = ""

    @property
    def is_only_untrue(self) -> bool:
        """Whether it is about a declaration, and so is its effect."""
        return self.kind.is_declaration and (self.effect is None or self.effect.kind.is_declaration)

    def with_evidence(self, **evidence: str) -> ProgramFinding:
        """Return the finding with more evidence, or with other one under the same labels."""
        return replace(self, evidence={**self.evidence, **evidence})

    def with_element(self, name: str, difference: ElementDifference) -> ProgramFinding:
        """Return the finding with the first element that differs."""
        off_by = f", {difference.off_by} off" if difference.off_by else ""
        text = f"{difference.expected} in the reference schedule, {difference.found} here{off_by}"
        text += f"; {difference.count} of {difference.total} differ"
        finding = self.with_evidence(**{name: text})
        return replace(finding, element=difference.element, expected=difference.expected, found=difference.found)


def task_finding(
    kind: Fault, schedule: str, flow: TaskFlow, task: int, sentence: str, **evidence: str
) -> ProgramFinding:
    """Return a finding about a task."""
    rank, codelet = int(flow.log.header["rank"]), flow.log.names[int(flow.codelet[task])]
    where = flow.name(task) + (f" of rank {rank}" if rank >= 0 else "")
    return ProgramFinding(
        sentence, evidence, where, kind=kind, schedule=schedule, task=task, codelet=codelet, rank=rank
    )


def finding_of(
    kind: Fault,
    schedule: str,
    flow: TaskFlow,
    access: int,
    sentence: str,
    suspects: Sequence[int] = (),
    **evidence: str,
) -> ProgramFinding:
    """Return a finding about an access; suspects are tasks."""
    task, handle = int(flow.task[access]), int(flow.handle[access])
    names = tuple(flow.name(suspect) for suspect in suspects)
    if names:
        evidence["suspects"] = listed(names)
    evidence = {"handle": f"{flow.handle_text(handle)}, access {access - int(flow.first[task])}", **evidence}
    return replace(task_finding(kind, schedule, flow, task, sentence, **evidence), handle=handle, suspects=names)


def first_of_each(
    findings: Sequence[ProgramFinding], flows: Mapping[int, TaskFlow] | None = None
) -> list[ProgramFinding]:
    """Return the first finding of each kind and codelet, with the number of all of them; those nearest the cause first.

    What a task's undeclared access explains is no finding of its own, but the effect of that one. With the
    ``flows`` of ranks, so is what follows from a handle that changes without a declared writer.
    """
    causes: dict[tuple[object, ...], ProgramFinding] = {}
    for finding in reversed(findings):
        if finding.kind in (Fault.UNDECLARED_WRITE, Fault.READ_WRITTEN):
            causes[finding.rank, finding.handle] = finding
        elif finding.kind in (Fault.UNDECLARED_READ, Fault.WRITTEN_READ, Fault.SCRATCH_READ):
            causes[Fault.OUTPUT_DIFFERS, finding.codelet] = causes[finding.codelet, finding.handle] = finding
            if finding.kind is not Fault.UNDECLARED_READ:
                causes[(Fault.POISONED_ENDING,)] = finding
    grouped: dict[tuple[Fault, str], list[ProgramFinding]] = {}
    effects: dict[tuple[Fault, str], ProgramFinding] = {}
    for finding in findings:
        cause = causes.get(_explanation(finding))
        if cause is None and flows is not None:
            cause = next((one for one in findings if _is_victim(finding, one, flows)), None)
        key = (finding.kind, finding.codelet) if cause is None else (cause.kind, cause.codelet)
        if cause is None:
            grouped.setdefault(key, []).append(finding)
        elif key not in effects or effects[key].kind.is_declaration:
            effects[key] = finding
    order = list(Fault)
    found = sorted(grouped.items(), key=lambda entry: (order.index(entry[0][0]), bool(entry[1][0].suspects)))
    return [
        replace(same[0], count=sum(one.count for one in same), effect=same[0].effect or effects.get(key))
        for key, same in found
    ]


def _explanation(finding: ProgramFinding) -> tuple[object, ...]:
    """Return what a task's access has in common with its effects: a handle of a rank, a codelet, or the poison."""
    if finding.kind in (Fault.CHANGED_BETWEEN, Fault.INPUT_CHANGED, Fault.INPUT_FROM_OUTSIDE):
        return finding.rank, finding.handle
    if finding.kind in (Fault.NOT_WRITTEN, Fault.PARTLY_WRITTEN):
        return finding.codelet, finding.handle
    return (finding.kind, finding.codelet) if finding.kind is Fault.OUTPUT_DIFFERS else (finding.kind,)


def _is_victim(finding: ProgramFinding, other: ProgramFinding, flows: Mapping[int, TaskFlow]) -> bool:
    """Return whether a finding follows from another one's handle, which somebody changes who doesn't declare it."""
    if finding.rank != other.rank or other.kind not in (Fault.UNDECLARED_WRITE, Fault.CHANGED_BETWEEN):
        return False
    if finding.kind in (Fault.INPUT_CHANGED, Fault.INPUT_FROM_OUTSIDE):
        return finding.handle == other.handle
    names = {other.where.partition(" of rank ")[0], *other.suspects}
    if finding.kind is not Fault.OUTPUT_DIFFERS or names.isdisjoint(finding.suspects):
        return False
    flow = flows[finding.rank]
    return other.handle in flow.handle[flow.task == finding.task]
