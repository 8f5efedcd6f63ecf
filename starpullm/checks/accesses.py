"""What tasks did to memory, as the instruments found it, compared with what they declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from starpullm.checks.observer import FindingKind, InstrumentFinding
from starpullm.checks.result import MAX_LISTED, CheckResult, passed_if
from starpullm.checks.task_name import TaskName
from starpullm.trace import Trace

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
    """Whether tasks did what they declared; ``compared`` counts tasks that ran, ``measured`` findings.

    ``findings`` lists the first ``MAX_LISTED`` in the order of execution, because the first is nearest to the cause.
    ``by_operation`` counts all of them.
    """

    findings: tuple[AccessFinding, ...]
    by_operation: dict[str, int]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield from map(str, self.findings)
        if int(self.measured or 0) > len(self.findings):
            yield f"… {self.measured:.0f} in all, by operation: " + ", ".join(
                f"{operation} {count}" for operation, count in self.by_operation.items()
            )


def check_accesses(trace: Trace, findings: Sequence[InstrumentFinding]) -> AccessesResult:
    """Evaluate what the access audit found. Passed: every access was declared, and every declared access happened.

    The audit sees a task's first access to a page and, if that was a read, the first write. It misses one kind of
    undeclared access: a read of a handle that is declared as ``WRITE``, on a page to which the task has written before
    (``check_poison`` finds it if the value matters). A declared access counts as done if it happened on one page. A
    ``READ_WRITE`` whose pages were all written first counts as never read.

    The findings are those of the trace's tasks, from a trainer with ``Instruments(audit=True)``; those of other
    instruments are ignored.
    """
    return _judge("accesses", trace, findings, _AUDIT)


def check_poison(trace: Trace, findings: Sequence[InstrumentFinding]) -> AccessesResult:
    """Evaluate what happened to poisoned memory. Passed: all of it was written before it was used in a result.

    Poisoned are, before each task, the buffers that it declares as ``WRITE`` and, between two steps, the buffers whose
    contents the next step doesn't need. A finding is an element that the task didn't write, or an element that was
    computed from memory that no task had written. Elements with wrong values aren't found.

    The findings are those of the trace's tasks, from a trainer with ``Instruments(poison=True)``; those of other
    instruments are ignored.
    """
    return _judge("poison", trace, findings, _POISON)


def _judge(
    name: str, trace: Trace, findings: Sequence[InstrumentFinding], kinds: Collection[FindingKind]
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
    ran = int((trace.tasks["worker"] >= 0).sum())
    return AccessesResult(
        name=name,
        outcome=passed_if(not named),
        finding=f"{ran} tasks with {len(trace.accesses)} accesses, {len(named)} findings",
        compared=ran,
        measured=len(named),
        findings=tuple(named[:MAX_LISTED]),
        by_operation=dict(
            Counter(entry.task.operation if entry.task else "not a task" for entry in named).most_common()
        ),
    )
