"""What tasks did to memory, as the instruments found it, compared with what they declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import REPRODUCIBLE, Case
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.observer import FindingKind, InstrumentFinding, Observer
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import trace_steps, traced_trainer
from starpullm.instruments import Instruments
from starpullm.trace import AccessMode, Trace


class _Instrumented(Check):
    """Train with an instrument, and judge what it found in the order of execution."""

    instruments: ClassVar[Instruments]
    sentences: ClassVar[Mapping[FindingKind, str]]
    """What the instrument finds; findings of other ones are ignored."""
    counted: str
    """What a finding counts."""

    def run(self, context: CheckContext, case: Case) -> Result:
        """Trace some steps."""
        with traced_trainer(context, case, instruments=self.instruments) as trainer:
            trace, observer = trace_steps(trainer, case.seed), Observer(trainer)
            return self.judge(trace, observer.findings(), observer.counts())

    def judge(self, trace: Trace, findings: Sequence[InstrumentFinding], counts: Any) -> Result:
        """Return the verdict; findings and counts are those of ``Observer`` on the trace's tasks."""
        named = [
            self._named(trace, finding)
            for finding in findings
            if finding.kind in self.sentences and not self.is_intended(trace, finding)
        ]
        looked_at, overlooked = self.overlooked(trace, findings, counts)
        by_operation = Counter(finding.where.partition(" (")[0] for finding in named)
        ran = int((trace.tasks["worker"] >= 0).sum())
        return self.result(
            compared=looked_at,
            findings=[*map(Finding, overlooked), *named],
            note=f"{ran} tasks with {len(trace.accesses)} accesses"
            + "".join(f", {operation} {count}" for operation, count in by_operation.most_common()),
            by_operation=dict(by_operation.most_common()),
        )

    def _named(self, trace: Trace, finding: InstrumentFinding) -> Finding:
        evidence = {"handle": finding.handle.name}
        if finding.count:
            evidence["evidence"] = f"{finding.count} {self.counted}, first at byte {finding.offset}"
        where = "not a task" if finding.task is None else str(trace[finding.task])
        return Finding(self.sentences[finding.kind], evidence, where, finding.kind.name.lower().replace("_", " "))

    def is_intended(self, trace: Trace, finding: InstrumentFinding) -> bool:
        """Return whether a finding is no fault."""
        return False

    def overlooked(self, trace: Trace, findings: Sequence[InstrumentFinding], counts: Any) -> tuple[int, list[str]]:
        """Return how much the instrument has looked at, and what it has overlooked of what the tasks declare."""
        raise NotImplementedError


@check
class Accesses(_Instrumented):
    """Protect memory except for a task's declared accesses. Passed: each was declared, and each declared one happened.

    The audit sees a task's first access to a page and, if that was a read, the first write. A declared access counts as
    done if it happened on one page. A ``READ_WRITE`` whose pages were all written first counts as never read. Every
    declared access must have been seen on a page, or be a finding. StarPU's own reduction adds in buffers that can't be
    protected.
    """

    family, unit = "dependencies", "accesses to pages"
    claim = "no task touches a page that it hasn't declared to, and each declared access was seen on a page"
    fault = "a task does not access what it declares"
    cannot_see = (
        "elements within a page; a read after an own write to the same page, unless poison shows it; whether the "
        "encoder adds to a tile of wte"
    )
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1), promises=REPRODUCIBLE, sharing=True)
    instruments = Instruments(audit=True)
    sentences: ClassVar = {
        FindingKind.UNDECLARED_READ: "reads data that it doesn't declare",
        FindingKind.UNDECLARED_WRITE: "writes data that it doesn't declare",
        FindingKind.READ_NEVER_HAPPENED: "reads no page, before it writes there, of what it declares to read",
        FindingKind.WRITE_NEVER_HAPPENED: "writes no page of what it declares to write",
    }
    counted = "pages"

    def is_intended(self, trace: Trace, finding: InstrumentFinding) -> bool:
        """Return whether the encoder had nothing to add to a tile of wte: no token of a sub-batch need be in it."""
        if finding.kind not in _NEVER_HAPPENED or finding.task is None:
            return False
        task = trace[finding.task]
        tiles = [access.handle.name for access in task.accesses if access.handle.name.startswith("grads/wte%")]
        of_tile = finding.handle.name in tiles or finding.handle.name.startswith("activation_grads/encoded")
        return task.operation == "encoder_backward" and bool(tiles) and of_tile

    def overlooked(self, trace: Trace, findings: Sequence[InstrumentFinding], counts: Any) -> tuple[int, list[str]]:
        """Compare the pages that were seen with the declared accesses."""
        modes = _accesses(trace)["mode"]  # never REDUX: such a session can't be audited
        declared = sum(np.count_nonzero(modes & kind) for kind in (AccessMode.READ, AccessMode.WRITE))
        least = declared - sum(finding.kind in _NEVER_HAPPENED for finding in findings)
        sentence = f"the audit saw {counts.pages} accesses to pages, expected at least {least}"
        return counts.pages, [sentence] if counts.pages < least else []


@check
class Poison(_Instrumented):
    """Put signalling NaNs into memory that a task must write, and into what a step leaves behind.

    Poisoned are, before each task, the buffers that it declares as ``WRITE`` and, between two steps, the buffers whose
    contents the next step doesn't need. A finding is an element that the task didn't write, or an element that was
    computed from memory that no task had written. The poison must have been found, right after it was written, in every
    element of what tasks declare as ``WRITE``, and in buffers between steps.
    """

    family, unit = "dependencies", "elements"
    claim = "no task reads memory that nobody wrote, and no task leaves an output unwritten"
    fault = "memory is read before it is written, or left unwritten"
    cannot_see = "wrong values; poison that a comparison drops, as in a maximum"
    needs = Needs(ranks=(1, 1), sharing=True)
    instruments = Instruments(poison=True)
    sentences: ClassVar = {
        FindingKind.NOT_WRITTEN: "leaves a part as it was of what it declares to write",
        FindingKind.POISON_SPREAD: "computes from memory that no task has written",
    }
    counted = "elements"

    def overlooked(self, trace: Trace, findings: Sequence[InstrumentFinding], counts: Any) -> tuple[int, list[str]]:
        """Compare the elements that were poisoned and searched with those that the tasks declare."""
        accesses = _accesses(trace)
        sizes = np.array([handle.bytes for handle in trace.handles], np.int64) // _ELEMENT_BYTES
        modes, elements = accesses["mode"], sizes[accesses["handle"]]
        written, searched = (elements[chosen].sum() for chosen in (modes == AccessMode.WRITE, modes != AccessMode.READ))
        unlike = []
        if counts.poisoned != written:
            unlike.append(f"{counts.poisoned} elements were poisoned before tasks, expected {written}")
        if counts.searched != searched:
            unlike.append(f"{counts.searched} elements were searched for poison after tasks, expected {searched}")
        if counts.poisoned_between == 0:
            unlike.append("no element was poisoned between steps, expected some")
        return counts.searched, unlike


_NEVER_HAPPENED = (FindingKind.READ_NEVER_HAPPENED, FindingKind.WRITE_NEVER_HAPPENED)

_ELEMENT_BYTES = 4


def _accesses(trace: Trace) -> NDArray[np.void]:
    """Return the accesses of the tasks that ran."""
    ran = trace.tasks["worker"] >= 0
    return trace.accesses[np.repeat(ran, trace.tasks["num_accesses"])]
