"""Accesses: what tasks did to memory, as the instruments found it, against what they had declared.

Programs call the checks with ``Trainer.trace()`` and ``Trainer.findings()`` of a trainer with ``Instruments``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from starpullm.checks.dependencies import TaskName, task_name
from starpullm.checks.result import CheckResult, Outcome
from starpullm.trace import Finding, FindingKind, Trace

__all__ = ["AccessFinding", "AccessesResult", "check_accesses", "check_poison"]

MAX_LISTED = 20
"""So many findings are kept one by one; their number is always the whole number."""

_AUDIT = {
    FindingKind.UNDECLARED_READ: "read {handle}, which it hadn't declared to: {count} pages, first at byte {offset}",
    FindingKind.UNDECLARED_WRITE: "wrote {handle}, which it hadn't declared to: {count} pages, first at byte {offset}",
    FindingKind.READ_NEVER_HAPPENED: "declared to read {handle} and read no page of it before writing it",
    FindingKind.WRITE_NEVER_HAPPENED: "declared to write {handle} and wrote no page of it",
}
_POISON = {
    FindingKind.NOT_WRITTEN: "declared to write {handle} and left {count} elements of it as they were, first at byte "
    "{offset}",
    FindingKind.POISON_SPREAD: "computed {count} elements of {handle} from memory that nobody had written, first at "
    "byte {offset}",
}
_SENTENCES = {**_AUDIT, **_POISON}


@dataclass(frozen=True, slots=True)
class AccessFinding:
    """A finding with its task's name; None: it wasn't a task. ``offset`` is in bytes, ``count`` as ``Finding`` says."""

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

    ``findings`` are the first ``MAX_LISTED`` in the order of execution, so that the first is the nearest to the cause;
    ``by_operation`` counts all of them.
    """

    num_tasks: int
    num_accesses: int
    findings: tuple[AccessFinding, ...]
    by_operation: dict[str, int]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield from map(str, self.findings)
        if int(self.measured or 0) > len(self.findings):
            yield f"… {self.measured:.0f} in all, by operation: " + ", ".join(
                f"{operation} {count}" for operation, count in self.by_operation.items()
            )


def check_accesses(trace: Trace, findings: Sequence[Finding]) -> AccessesResult:
    """Judge what the access audit found: every access declared, and every declared access done.

    What is seen of a page in a task is its first access and, if that was a read, the first write. So every undeclared
    access is found but one: a read of what was declared as ``WRITE``, on a page that the task has written to before
    (``check_poison`` finds it if the value matters). A declared access counts as done if it happened on one page; a
    ``READ_WRITE`` whose pages were all written first counts as never read.

    Parameters
    ----------
    trace
        The recorded tasks.
    findings
        Of the same tasks, by a trainer with ``Instruments(audit=True)``; those of other instruments are left out.
    """
    return _judge("accesses", trace, findings, _AUDIT)


def check_poison(trace: Trace, findings: Sequence[Finding]) -> AccessesResult:
    """Judge what became of poisoned memory: all of it was written, and none had a part in a result.

    Poisoned are the buffers that a task declares as ``WRITE``, before it runs, and between steps what no step needs of
    the one before. So a finding is an element that the task left out, or one that was computed from a value that nobody
    had written; an element that was written with a wrong value is none.

    Parameters
    ----------
    trace
        The recorded tasks.
    findings
        Of the same tasks, by a trainer with ``Instruments(poison=True)``; those of other instruments are left out.
    """
    return _judge("poison", trace, findings, _POISON)


def _judge(name: str, trace: Trace, findings: Sequence[Finding], kinds: Collection[FindingKind]) -> AccessesResult:
    named = [
        AccessFinding(
            None if finding.task is None else task_name(trace, finding.task),
            finding.handle.name,
            finding.kind,
            finding.offset,
            finding.count,
        )
        for finding in findings
        if finding.kind in kinds
    ]
    ran = int((trace.tasks["worker"] >= 0).sum())
    if ran == 0:
        outcome, finding = Outcome.INCONCLUSIVE, "no task ran here, so nothing was shown"
    else:
        outcome = Outcome.FAILED if named else Outcome.PASSED
        finding = f"{ran} tasks with {len(trace.accesses)} accesses, {len(named)} findings"
    return AccessesResult(
        name=name,
        outcome=outcome,
        finding=finding,
        measured=len(named),
        limit=0,
        num_tasks=ran,
        num_accesses=len(trace.accesses),
        findings=tuple(named[:MAX_LISTED]),
        by_operation=dict(
            Counter(entry.task.operation if entry.task else "not a task" for entry in named).most_common()
        ),
    )
