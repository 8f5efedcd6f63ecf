"""What poison in the memory that tasks declare as written only shows of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from starpullm.files import probe_log
from starpullm.probe.compare import compare
from starpullm.probe.findings import Finding, Kind, finding_of
from starpullm.probe.flow import Flow

_TRANSACTION = "starpu_transaction_"
"""StarPU's own codelets, whose handle only orders tasks: they declare to write it, and write nothing."""


def explain_poison(reference: Flow, poisoned: Flow, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Replace findings about other outputs by what they mean: the task used what it declares to overwrite.

    The runs differ in the poison alone. Where poison has stayed in place and nothing else differs, the task hasn't
    written all that it declares to write, which is worth a note only. A program that has submitted other tasks, because
    its results were others, is judged by the tasks before.
    """
    findings = list(findings)
    others = next((finding for finding in findings if finding.kind is Kind.OTHER_TASKS), None)
    if others is not None and others.task > 0:
        reference, poisoned = reference.truncated(others.task), poisoned.truncated(others.task)
        findings = [*compare(reference, poisoned, others.schedule).findings, *findings]
    for finding in findings:
        if finding.codelet.startswith(_TRANSACTION):
            continue
        if finding.kind is Kind.OUTPUT_DIFFERS:
            yield _explain(reference, poisoned, finding)
        else:
            yield finding


def _explain(reference: Flow, poisoned: Flow, finding: Finding) -> Finding:
    accesses = np.arange(poisoned.first[finding.task], poisoned.first[finding.task + 1])
    left = poisoned.log.poison_left[poisoned.accesses[accesses]]
    only_written = (poisoned.mode[accesses] & (probe_log.MODE_READ | probe_log.MODE_WRITE)) == probe_log.MODE_WRITE
    (before, known), (after, also_known) = reference.after, poisoned.after
    differs = (known & also_known & (before != after))[accesses] & poisoned.writes[accesses]
    stayed = only_written & (left > 0)
    if not (differs & ~stayed).any():
        access = int(accesses[differs][0])
        kept = int(left[differs][0])
        if kept == _poisons(poisoned, access):
            text = "{task} declares to write {handle}, and wrote nothing there: it contains whatever was in the memory"
            return finding_of(Kind.NOT_WRITTEN, finding.schedule, poisoned, access, text)
        text = f"{{task}} declares to write {{handle}}, and left {kept} elements of it as they were"
        return finding_of(Kind.LEFT_UNWRITTEN, finding.schedule, poisoned, access, text)
    # Memory of which much was left in place was likely only read.
    suspects = np.flatnonzero(only_written)
    access = int(accesses[suspects[np.argmax(left[suspects])]]) if len(suspects) else int(accesses[0])
    output = poisoned.handle_name(int(poisoned.handle[accesses[differs & ~stayed][0]]))
    text = (
        "{task} declares to write {handle} without reading it; after that memory had been filled with signalling NaNs, "
        f"it left other contents in {output}: it reads what it declares to overwrite"
    )
    return finding_of(Kind.WRITTEN_READ, finding.schedule, poisoned, access, text)


def _poisons(flow: Flow, access: int) -> int:
    """Return how many poisons fill the handle of an access; each has 8, 4 or 1 bytes, as the elements allow."""
    record = flow.log.handles[flow.handle_of_log[flow.handle[access]]]
    element_bytes = int(record["element_bytes"])
    poison_bytes = next(size for size in (8, 4, 1) if element_bytes % size == 0)
    return int(np.prod(record["sizes"].astype(np.int64))) * element_bytes // poison_bytes
