"""What poison in the memory that tasks declare as written only shows of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.compare import compare
from starpullm.probe.findings import Fault, ProgramFinding, finding_of
from starpullm.probe.first_difference import RunAgain
from starpullm.probe.probe_schedules import POISONED
from starpullm.probe.program_tasks import TaskFlow

_TRANSACTION = "starpu_transaction_"
"""StarPU's own codelets, whose handle only orders tasks: they declare to write it, and write nothing."""
_MOST_CODELETS = 3
"""For which `ReadAccess` runs the program."""


class ReadAccess:
    """Tells which access of a task uses poison: runs in which one access at a time has the other kind of it."""

    def __init__(self, run_again: RunAgain) -> None:
        self._run_again = run_again
        self._known: dict[str, int | None] = {}  # by codelet: which of a task's accesses; None: none of them

    def of(self, flow: TaskFlow, finding: ProgramFinding, suspects: list[int], is_certain: bool) -> int | None:
        """Return one of the accesses of a finding's task; None if it isn't `is_certain` that it uses one of them."""
        first = int(flow.first[finding.task])
        if is_certain and len(suspects) == 1:
            return suspects[0]
        if finding.codelet not in self._known:
            looked_at = suspects if len(self._known) < _MOST_CODELETS and not flow.is_nested else []
            found = (suspect - first for suspect in looked_at if self._is_used(flow, finding, suspect - first))
            self._known[finding.codelet] = next(found, suspects[0] - first if suspects and is_certain else None)
        position = self._known[finding.codelet]
        return None if position is None else first + position

    def _is_used(self, flow: TaskFlow, finding: ProgramFinding, position: int) -> bool:
        schedule = replace(POISONED[0], other_poison=position + 1)
        other = self._run_again(schedule, str(finding.task), finding)
        own = slice(int(flow.first[finding.task]), int(flow.first[finding.task + 1]))
        return other is not None and bool((flow.after[0][own] != other.after[0][own]).any())


def explain_poison(
    one: TaskFlow, two: TaskFlow, findings: Iterable[ProgramFinding], read_access: ReadAccess
) -> Iterator[ProgramFinding]:
    """Replace findings about two runs, which differ in poison alone, by what they mean.

    A task used what it declares to overwrite, or what another one had left as it was. A program that has submitted
    other tasks, because its results were others, is judged by the tasks before. What the application did otherwise
    follows from other findings, if there are some.
    """
    left = left_unwritten(one).tolist()
    by_application: list[ProgramFinding] = []
    num_explained = 0
    for finding in _with_earlier_tasks(one, two, findings):
        if finding.codelet.startswith(_TRANSACTION):
            continue
        contributors = []
        if finding.kind is Fault.INPUT_FROM_OUTSIDE:
            contributors = one.contributors(finding.handle, finding.task)[::-1]
        if finding.kind is not Fault.OUTPUT_DIFFERS and not contributors:
            by_application.append(finding)
            continue
        explained = (
            _explained(one, replace(finding, task=task), left, read_access) for task in contributors or [finding.task]
        )
        for first in filter(None, explained):
            num_explained += 1
            yield first
            break
    if num_explained == 0 and by_application and left:
        yield _left_finding(one, left[0], by_application[0].schedule, "the application")
    elif num_explained == 0:
        yield from by_application


def _explained(
    flow: TaskFlow, finding: ProgramFinding, left: list[int], read_access: ReadAccess
) -> ProgramFinding | None:
    """Return what a task has used, of its own or of another one."""
    own = np.arange(flow.first[finding.task], flow.first[finding.task + 1])
    suspects = own[_is_filled(flow)[own]]
    writer = _writer(flow, finding.task, left)
    access = read_access.of(flow, finding, suspects.tolist(), writer is None)
    if access is not None:
        return _read(flow, finding, access)
    return None if writer is None else _left_finding(flow, writer, finding.schedule, flow.name(finding.task))


def _with_earlier_tasks(one: TaskFlow, two: TaskFlow, findings: Iterable[ProgramFinding]) -> list[ProgramFinding]:
    """Return findings, with those about the tasks before the first one that the runs don't have in common."""
    findings = list(findings)
    others = next((finding for finding in findings if finding.kind is Fault.OTHER_TASKS), None)
    if others is None or others.task <= 0:
        return findings
    return [*compare(one.truncated(others.task), two.truncated(others.task), others.schedule).findings, *findings]


def _only_writes(flow: TaskFlow) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (flow.mode & (probe_log.MODE_READ | probe_log.MODE_WRITE)) == probe_log.MODE_WRITE
    return result


def _is_filled(flow: TaskFlow) -> NDArray[np.bool_]:
    """Return which accesses are to memory that is filled with poison before the task."""
    result: NDArray[np.bool_] = _only_writes(flow) | ((flow.mode & probe_log.MODE_SCRATCH) != 0)
    return result


def _read(flow: TaskFlow, finding: ProgramFinding, access: int) -> ProgramFinding:
    """Return the finding about an access whose poison was used."""
    kind, sentence = Fault.WRITTEN_READ, "reads what it declares to overwrite"
    if not _only_writes(flow)[access]:
        kind, sentence = Fault.SCRATCH_READ, "reads scratch memory that it has not written"
    evidence = f"signalling NaNs there led to other contents of handle {finding.handle} than large numbers"
    return finding_of(kind, finding.schedule, flow, access, sentence, evidence=evidence)


def left_unwritten(flow: TaskFlow) -> NDArray[np.int64]:
    """Return the accesses that declare to write, and left at least a part as it was."""
    left = flow.log.poison_left(probe_log.AFTER)[flow.accesses]
    of_starpu = np.array([name.startswith(_TRANSACTION) for name in flow.log.names], bool)[flow.codelet[flow.task]]
    return np.flatnonzero(_only_writes(flow) & (left > 0) & ~of_starpu)


def of_unwritten(schedule: str, flow: TaskFlow) -> Iterator[ProgramFinding]:
    """Yield what tasks have left as it was: a note, unless nothing was written where something is expected.

    The application gets its own data back.
    """
    is_expected = flow.log.poison_left(probe_log.AFTER)[flow.accesses] >= probe_log.WAS_FILLED
    is_expected &= flow.source < 0
    for access in left_unwritten(flow).tolist():
        if is_expected[access] and _left_bytes(flow, access) == _bytes(flow, access):
            kind, evidence = Fault.NOT_WRITTEN, "what was there before isn't defined any more"
        else:
            kind, evidence = Fault.LEFT_UNWRITTEN, "no task was seen to use it"
        yield finding_of(kind, schedule, flow, access, _left(flow, access), evidence=evidence)


def _writer(flow: TaskFlow, task: int, left: Container[int]) -> int | None:
    """Return the access that left the poison which a task finds, also through tasks that have handed it on.

    What such a task hands on in a handle comes from the same one, if that had poison before.
    """
    poison_before = flow.log.poison_left(probe_log.BEFORE)[flow.accesses] > 0
    position: int | None = task
    handle = -1
    while position is not None:
        inputs = np.arange(flow.first[position], flow.first[position + 1])
        inputs = inputs[poison_before[inputs] & (flow.source[inputs] >= 0)]
        if len(inputs) == 0:
            return None
        found = int(inputs[np.argmax(flow.handle[inputs] == handle)])
        source, handle = int(flow.source[found]), int(flow.handle[found])
        (places,) = np.nonzero(flow.accesses == source)
        if len(places) and int(places[0]) in left:
            return int(places[0])
        position = flow.position(int(flow.log.task_of_access[source]))
    return None


def _left_finding(flow: TaskFlow, access: int, schedule: str, user: str) -> ProgramFinding:
    """Return the finding about an access that left as it was what somebody used."""
    kind = Fault.NOT_WRITTEN if _left_bytes(flow, access) == _bytes(flow, access) else Fault.PARTLY_WRITTEN
    evidence = f"{user} uses that: other values there change its result"
    return finding_of(kind, schedule, flow, access, _left(flow, access), evidence=evidence)


def _left_bytes(flow: TaskFlow, access: int) -> int:
    return int(flow.log.poison_left(probe_log.AFTER)[flow.accesses[access]]) % probe_log.WAS_FILLED


def _bytes(flow: TaskFlow, access: int) -> int:
    return int(flow.log.handles[flow.handle_of_log[flow.handle[access]]]["bytes"])


def _left(flow: TaskFlow, access: int) -> str:
    left, total = _left_bytes(flow, access), _bytes(flow, access)
    if left == total:
        return "writes nothing of what it declares to write"
    return f"leaves {left} of the {total} bytes as they were that it declares to write"
