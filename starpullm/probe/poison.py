"""What poison in the memory that tasks declare as written only shows of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.compare import compare
from starpullm.probe.findings import Fault, ProgramFinding, finding_of
from starpullm.probe.program_tasks import TaskFlow

_TRANSACTION = "starpu_transaction_"
"""StarPU's own codelets, whose handle only orders tasks: they declare to write it, and write nothing."""


def explain_poison(
    reference: TaskFlow, poisoned: TaskFlow, findings: Iterable[ProgramFinding]
) -> Iterator[ProgramFinding]:
    """Replace findings about other outputs by what they mean: the task used what it declares to overwrite.

    Poison that a task has left got back what was there before, so the runs differ only where a task has read poison. A
    program that has submitted other tasks, because its results were others, is judged by the tasks before.
    """
    only_write = set(poisoned.task[_is_filled(poisoned)].tolist())
    for finding in _with_earlier_tasks(reference, poisoned, findings):
        if finding.codelet.startswith(_TRANSACTION):
            continue
        is_of_sum = finding.kind is Fault.INPUT_FROM_OUTSIDE
        tasks = _contributors(poisoned, finding) if is_of_sum else [finding.task]
        reader = next((task for task in tasks if task in only_write), None)
        if reader is not None and finding.kind in (Fault.OUTPUT_DIFFERS, Fault.INPUT_FROM_OUTSIDE):
            yield _read(poisoned, finding, np.arange(poisoned.first[reader], poisoned.first[reader + 1]))
        elif not (is_of_sum and tasks):
            yield finding


def _contributors(flow: TaskFlow, finding: ProgramFinding) -> list[int]:
    """Return the tasks before that add to the handle of a finding, the last one first."""
    is_sum = (flow.mode & (probe_log.MODE_REDUX | probe_log.MODE_COMMUTE)) != 0
    tasks = flow.task[is_sum & (flow.handle == finding.handle) & (flow.task < finding.task)]
    return [int(task) for task in tasks[::-1]]


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


def _read(poisoned: TaskFlow, finding: ProgramFinding, accesses: NDArray[np.int64]) -> ProgramFinding:
    """Return the finding about a task that has read poison; memory of which it left much was likely only read."""
    left = poisoned.log.poison_left(probe_log.AFTER)[poisoned.accesses[accesses]] % probe_log.WAS_FILLED
    suspects = np.flatnonzero(_is_filled(poisoned)[accesses])
    access = int(accesses[suspects[np.argmax(left[suspects])]])
    output = poisoned.handle_name(finding.handle)
    kind, use, source = Fault.WRITTEN_READ, "declares to write {handle} without reading it", "declares to overwrite"
    if not _only_writes(poisoned)[access]:
        kind, use, source = Fault.SCRATCH_READ, "has {handle} as scratch memory", "has not written there"
    text = (
        f"{{task}} {use}; after that memory had been filled with signalling NaNs, it left other contents in {output}: "
        f"it reads what it {source}"
    )
    return finding_of(kind, finding.schedule, poisoned, access, text)


def left_unwritten(flow: TaskFlow) -> NDArray[np.int64]:
    """Return the accesses that declare to write, and left at least a part as it was."""
    left = flow.log.poison_left(probe_log.AFTER)[flow.accesses]
    of_starpu = np.array([name.startswith(_TRANSACTION) for name in flow.log.names], bool)[flow.codelet[flow.task]]
    return np.flatnonzero(_only_writes(flow) & (left > 0) & ~of_starpu)


def of_unwritten(schedule: str, flow: TaskFlow) -> Iterator[ProgramFinding]:
    """Yield what tasks have left as it was: a note, unless nothing was written where something is expected.

    The application gets its own data back, and a task that reads elements too small for poison that stays may use them.
    """
    is_expected = flow.log.poison_left(probe_log.AFTER)[flow.accesses] >= probe_log.WAS_FILLED
    is_expected &= flow.source < 0
    is_small = (flow.log.handles["element_bytes"] % 4 != 0)[flow.handle_of_log[flow.handle]]
    is_expected |= is_small & np.isin(flow.accesses, flow.source[flow.reads])
    for access in left_unwritten(flow).tolist():
        if is_expected[access] and _left_bytes(flow, access) == _bytes(flow, access):
            text = f"{_left(flow, access)}: what was there before isn't defined any more"
            yield finding_of(Fault.NOT_WRITTEN, schedule, flow, access, text)
        else:
            text = f"{_left(flow, access)}; no task was seen to use it"
            yield finding_of(Fault.LEFT_UNWRITTEN, schedule, flow, access, text)


def used_unwritten(
    poisoned: TaskFlow, one: TaskFlow, two: TaskFlow, findings: Iterable[ProgramFinding], readers: Container[str]
) -> Iterator[ProgramFinding]:
    """Yield tasks that left as it was what they declare to write, and of which a later task used it.

    The two runs have poison that stays, and differ in the poison alone; ``findings`` are those of their comparison.
    Tasks of codelets in ``readers`` have another reason for other outputs: they read what they declare to overwrite.
    ``poisoned`` is the run of which the poison that was left got back what was there before.
    """
    poison_before = one.log.poison_left(probe_log.BEFORE)[one.accesses] > 0
    writers = frozenset(left_unwritten(poisoned).tolist())
    for finding in _with_earlier_tasks(one, two, findings):
        if finding.kind is not Fault.OUTPUT_DIFFERS or finding.codelet in readers:
            continue
        writer = _writer(one, finding.task, poison_before, writers)
        if writer is None:
            continue
        is_whole = _left_bytes(poisoned, writer) == _bytes(poisoned, writer)
        kind = Fault.NOT_WRITTEN if is_whole else Fault.PARTLY_WRITTEN
        text = f"{_left(poisoned, writer)}; {one.name(finding.task)} uses that: other values there change its result"
        yield finding_of(kind, finding.schedule, poisoned, writer, text)


def _writer(flow: TaskFlow, task: int, poison_before: NDArray[np.bool_], writers: Container[int]) -> int | None:
    """Return the access that left the poison which a task finds, also through tasks that have handed it on.

    What such a task hands on in a handle comes from the same one, if that had poison before.
    """
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
        if len(places) and int(places[0]) in writers:
            return int(places[0])
        position = flow.position(int(flow.log.task_of_access[source]))
    return None


def _left_bytes(flow: TaskFlow, access: int) -> int:
    return int(flow.log.poison_left(probe_log.AFTER)[flow.accesses[access]]) % probe_log.WAS_FILLED


def _bytes(flow: TaskFlow, access: int) -> int:
    return int(flow.log.handles[flow.handle_of_log[flow.handle[access]]]["bytes"])


def _left(flow: TaskFlow, access: int) -> str:
    left, total = _left_bytes(flow, access), _bytes(flow, access)
    if left == total:
        return "{task} declares to write {handle}, and wrote nothing there"
    return f"{{task}} declares to write {{handle}}, and left {left} of its {total} bytes as they were"
