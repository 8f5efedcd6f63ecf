"""What tasks did to memory, as the instruments found it, compared with what they declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.observer import FindingKind, InstrumentCounts, InstrumentFinding
from starpullm.checks.result import MAX_LISTED, CheckResult, passed_if
from starpullm.checks.task_name import TaskName
from starpullm.trace import AccessMode, Trace

_AUDIT = {
    FindingKind.UNDECLARED_READ: "read {handle}, which it hadn't declared to: {count} pages, first at byte {offset}",
    FindingKind.UNDECLARED_WRITE: "wrote {handle}, which it hadn't declared to: {count} pages, first at byte {offset}",
    FindingKind.READ_NEVER_HAPPENED: "declared to read {handle} and read no page of it before writing it",
    FindingKind.WRITE_NEVER_HAPPENED: "declared to write {handle} and wrote no page of it",
}
_POISON = {
    FindingKind.NOT_WRITTEN: "declared to write {handle} and left {count} elements of it as they were, first at byte "
    "{offset}",
    FindingKind.POISON_SPREAD: "computed {count} elements of {handle} from memory that no task had written, first at "
    "byte {offset}",
}
_SENTENCES = {**_AUDIT, **_POISON}


@dataclass(frozen=True, slots=True)
class AccessFinding:
    """An ``InstrumentFinding`` with the name of its task; None if the access was made outside of tasks."""

    task: TaskName | None
    handle: str
    kind: FindingKind
    offset: int
    count: int

    def __str__(self) -> str:
        sentence = _SENTENCES[self.kind].format(handle=self.handle, count=self.count, offset=self.offset)
        return f"{self.task or 'not a task'} {sentence}"


@dataclass(frozen=True, kw_only=True)
class AccessesResult(CheckResult):
    """Whether tasks did what they declared; ``measured`` counts findings.

    ``compared`` counts the tasks' first accesses to pages, or the elements that were searched for poison. If the
    instruments have not looked at everything that the trace's tasks declare, ``overlooked`` says at what, and the check
    has failed. ``findings`` lists the first ``MAX_LISTED`` in the order of execution, because the first is nearest to
    the cause. ``by_operation`` counts all of them.
    """

    overlooked: tuple[str, ...]
    findings: tuple[AccessFinding, ...]
    by_operation: dict[str, int]

    def detail_lines(self) -> Iterator[str]:
        """Yield what wasn't looked at, and the findings."""
        yield from self.overlooked
        yield from map(str, self.findings)
        if int(self.measured or 0) > len(self.findings):
            yield f"… {self.measured:.0f} in all, by operation: " + ", ".join(
                f"{operation} {count}" for operation, count in self.by_operation.items()
            )


def check_accesses(trace: Trace, findings: Sequence[InstrumentFinding], counts: InstrumentCounts) -> AccessesResult:
    """Evaluate what the access audit found. Passed: every access was declared, and every declared access happened.

    The audit sees a task's first access to a page and, if that was a read, the first write. It misses one kind of
    undeclared access: a read of a handle that is declared as ``WRITE``, on a page to which the task has written before
    (``check_poison`` finds it if the value matters). A declared access counts as done if it happened on one page. A
    ``READ_WRITE`` whose pages were all written first counts as never read.

    Findings and counts are those of the trace's tasks, from a trainer with ``Instruments(audit=True)``; those of other
    instruments are ignored. Every declared access must have been seen on a page, or be a finding.
    """
    modes = _modes(trace)  # never REDUX: such a session can't be audited
    declared = sum(np.count_nonzero(modes & kind) for kind in (AccessMode.READ, AccessMode.WRITE))
    missed = sum(finding.kind in _NEVER_HAPPENED for finding in findings)
    least = declared - missed
    overlooked = [f"the audit saw {counts.pages} accesses to pages, expected at least {least}"]
    return _judge(
        "accesses",
        trace,
        findings,
        _AUDIT,
        (counts.pages, "accesses to pages"),
        overlooked if counts.pages < least else [],
    )


def check_poison(trace: Trace, findings: Sequence[InstrumentFinding], counts: InstrumentCounts) -> AccessesResult:
    """Evaluate what happened to poisoned memory. Passed: all of it was written before it was used in a result.

    Poisoned are, before each task, the buffers that it declares as ``WRITE`` and, between two steps, the buffers whose
    contents the next step doesn't need. A finding is an element that the task didn't write, or an element that was
    computed from memory that no task had written. Elements with wrong values aren't found.

    Findings and counts are those of the trace's tasks, from a trainer with ``Instruments(poison=True)``; those of other
    instruments are ignored. The poison must have been found, right after it was written, in every element of what tasks
    declare as ``WRITE``, and in buffers between steps.
    """
    modes, elements = _modes(trace), _elements(trace)
    written, searched = int(elements[modes == AccessMode.WRITE].sum()), int(elements[modes != AccessMode.READ].sum())
    overlooked = []
    if counts.poisoned != written:
        overlooked.append(f"{counts.poisoned} elements were poisoned before tasks, expected {written}")
    if counts.searched != searched:
        overlooked.append(f"{counts.searched} elements were searched for poison after tasks, expected {searched}")
    if counts.poisoned_between == 0:
        overlooked.append("no element was poisoned between steps, expected some")
    return _judge("poison", trace, findings, _POISON, (counts.searched, "elements"), overlooked)


_NEVER_HAPPENED = (FindingKind.READ_NEVER_HAPPENED, FindingKind.WRITE_NEVER_HAPPENED)

_ELEMENT_BYTES = 4


def _accesses(trace: Trace) -> NDArray[np.void]:
    """Return the accesses of the tasks that ran."""
    ran = trace.tasks["worker"] >= 0
    return trace.accesses[np.repeat(ran, trace.tasks["num_accesses"])]


def _modes(trace: Trace) -> NDArray[np.int32]:
    modes: NDArray[np.int32] = _accesses(trace)["mode"]
    return modes


def _elements(trace: Trace) -> NDArray[np.int64]:
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64) // _ELEMENT_BYTES
    elements: NDArray[np.int64] = sizes[_accesses(trace)["handle"]]
    return elements


def _judge(
    name: str,
    trace: Trace,
    findings: Sequence[InstrumentFinding],
    kinds: Collection[FindingKind],
    looked_at: tuple[int, str],
    overlooked: Sequence[str],
) -> AccessesResult:
    named = [
        AccessFinding(
            None if finding.task is None else TaskName.of(trace[finding.task]),
            finding.handle.name,
            finding.kind,
            finding.offset,
            finding.count,
        )
        for finding in findings
        if finding.kind in kinds
    ]
    ran, (count, unit) = int((trace.tasks["worker"] >= 0).sum()), looked_at
    found = f"{ran} tasks with {len(trace.accesses)} accesses, {count} {unit}, {len(named)} findings"
    return AccessesResult(
        name=name,
        outcome=passed_if(not named and not overlooked),
        finding="; ".join([*overlooked[:1], found]),
        compared=count,
        unit=unit,
        measured=len(named),
        overlooked=tuple(overlooked),
        findings=tuple(named[:MAX_LISTED]),
        by_operation=dict(
            Counter(entry.task.operation if entry.task else "not a task" for entry in named).most_common()
        ),
    )
