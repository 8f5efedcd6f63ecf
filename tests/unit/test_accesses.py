"""Tests of the judgement on the instruments' findings: each kind fails its own check, with a sentence that names it.

The instruments themselves are tested by native/tests/instrument and tests/native.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from starpullm.checks.accesses import Accesses, Poison
from starpullm.checks.observer import FindingKind, InstrumentFinding
from starpullm.checks.result import MAX_LISTED, Outcome, Result
from starpullm.errors import InvalidArgumentError
from starpullm.trace import AccessMode, HandleInfo, TaskRecord, Trace

from .traces import trace_of

check_accesses, check_poison = Accesses().judge, Poison().judge

QKV, ATT = HandleInfo(0, "activations/qkv[3]#1", 8192), HandleInfo(1, "activations/att[3]#1", 4096)

Judge = Callable[..., Result]


@dataclass(frozen=True)
class Counts:
    """Stands for the library's struct."""

    pages: int
    poisoned: int
    poisoned_between: int
    searched: int


LOOKED = Counts(pages=3, poisoned=3072, poisoned_between=512, searched=3072)
"""At everything that both tasks declare."""

AUDIT = [kind for kind in FindingKind if kind < FindingKind.NOT_WRITTEN]
POISON = [kind for kind in FindingKind if kind >= FindingKind.NOT_WRITTEN]


def two_tasks(*, worker: int = 0) -> Trace:
    flow = [[(0, AccessMode.WRITE)], [(1, AccessMode.WRITE), (0, AccessMode.READ)]]
    place = {"step": 2, "sub_batch": 1, "layer": 3, "worker": worker}
    sizes = {QKV.name: QKV.bytes, ATT.name: ATT.bytes}
    return trace_of(flow, sizes, ("matmul_forward", "attention_forward"), operation=[0, 1], **place)


def found(kind: FindingKind, *, task: int | None = 1) -> InstrumentFinding:
    return InstrumentFinding(task, QKV, kind, 4096, 2)


@pytest.mark.parametrize("check", [check_accesses, check_poison])
def test_no_finding_passes(check: Judge) -> None:
    result = check(two_tasks(), [], LOOKED)
    assert result.outcome is Outcome.PASSED
    assert (result.measured, result.limit, result.compared) == (0, 0, 3 if check is check_accesses else 3072)
    assert result.findings == ()
    looked_at = "3 accesses to pages" if check is check_accesses else "3,072 elements"
    assert result.sentence == f"{looked_at} compared; 2 tasks with 3 accesses"


@pytest.mark.parametrize("kind", FindingKind)
def test_every_kind_fails_its_own_check_alone(kind: FindingKind) -> None:
    results = {check: check(two_tasks(), [found(kind)], LOOKED) for check in (check_accesses, check_poison)}
    failed = [check for check, result in results.items() if result.outcome is Outcome.FAILED]
    assert failed == [check_accesses if kind in AUDIT else check_poison]
    (finding,) = results[failed[0]].findings
    assert finding.kind.replace(" ", "_").upper() == kind.name
    assert finding.where == "attention_forward (step 2, sub-batch 1, layer 3)"
    assert finding.evidence["handle"] == "activations/qkv[3]#1"
    assert finding.evidence["evidence"] == f"2 {'pages' if kind in AUDIT else 'elements'}, first at byte 4096"
    json.dumps(results[failed[0]].as_json())


@pytest.mark.parametrize("kind", AUDIT)
@pytest.mark.parametrize("operation", ["encoder_backward", "matmul_backward_weight"])
@pytest.mark.parametrize("gradient", ["grads/wte", "grads/wte%1"])
def test_the_encoder_need_not_add_to_a_tile(kind: FindingKind, operation: str, gradient: str) -> None:
    """Only it, only to a tile, and only of its gradients: whatever else it does or leaves undone is found."""
    names = (gradient, "activation_grads/encoded#0", "inputs")
    accesses = list(zip(names, (AccessMode.READ_WRITE, AccessMode.READ, AccessMode.READ), strict=True))
    trace = trace_of([accesses], dict.fromkeys(names, 64), (operation,))
    findings = [InstrumentFinding(0, handle, kind, 0, 1) for handle in trace.handles]
    result = check_accesses(trace, findings, replace(LOOKED, pages=4))
    never = kind in (FindingKind.READ_NEVER_HAPPENED, FindingKind.WRITE_NEVER_HAPPENED)
    excused = 2 if never and operation == "encoder_backward" and "%" in gradient else 0
    assert result.count == len(findings) - excused


def test_who_is_no_task_is_named_so() -> None:
    result = check_accesses(two_tasks(), [found(FindingKind.UNDECLARED_WRITE, task=None)], LOOKED)
    assert str(result.findings[0]) == "undeclared write  not a task  writes data that it doesn't declare"
    assert result.facts["by_operation"] == {"not a task": 1}
    assert len(result.lines()) == 4  # findings that are all listed are not summed up


@pytest.mark.parametrize(
    ("sub_batch", "layer", "text"),
    [
        (-1, -1, "gelu_forward (step 2)"),
        (0, -1, "gelu_forward (step 2, sub-batch 0)"),
        (0, 0, "gelu_forward (step 2, sub-batch 0, layer 0)"),
    ],
)
def test_a_task_is_named_with_layer_and_sub_batch_0(sub_batch: int, layer: int, text: str) -> None:
    assert str(TaskRecord(7, 2, "gelu_forward", sub_batch, layer, 0, 1, 0, 0, 0, ())) == text
    assert str(two_tasks(worker=5)[1]) == "attention_forward (step 2, sub-batch 1, layer 3)"


def test_many_findings_are_counted_and_some_listed() -> None:
    findings = [found(kind, task=task) for kind, task in itertools.product(AUDIT, (0, 1)) for _ in range(10)]
    result = check_accesses(two_tasks(), findings, LOOKED)
    assert result.measured == len(findings) > len(result.findings) == MAX_LISTED
    assert result.facts["by_operation"] == {"matmul_forward": 40, "attention_forward": 40}
    assert result.sentence.endswith("2 tasks with 3 accesses, matmul_forward 40, attention_forward 40")
    assert result.lines()[-1] == "  … and 60 more"


@pytest.mark.parametrize("check", [check_accesses, check_poison])
def test_what_did_not_run_shows_nothing(check: Judge) -> None:
    """A finding stands: something outside of tasks may have written."""
    nothing, between = Counts(0, 0, 0, 0), Counts(0, 0, 512, 0)
    with pytest.raises(InvalidArgumentError, match=r"nothing was compared: 0 [a-z ]+ compared; 0 tasks with 3 acc"):
        check(two_tasks(worker=-1), [], between)
    kind = (AUDIT if check is check_accesses else POISON)[0]
    assert check(two_tasks(worker=-1), [found(kind, task=None)], nothing).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("check", "counts", "sentence"),
    [
        (check_accesses, replace(LOOKED, pages=2), "the audit saw 2 accesses to pages, expected at least 3"),
        (check_accesses, replace(LOOKED, pages=0), "the audit saw 0 accesses to pages, expected at least 3"),
        (check_poison, replace(LOOKED, poisoned=0), "0 elements were poisoned before tasks, expected 3072"),
        (check_poison, replace(LOOKED, poisoned=3071), "3071 elements were poisoned before tasks, expected 3072"),
        (check_poison, replace(LOOKED, searched=3071), "3071 elements were searched for poison after tasks, expected"),
        (check_poison, replace(LOOKED, poisoned_between=0), "no element was poisoned between steps, expected some"),
    ],
)
def test_an_instrument_that_did_not_look_at_everything_fails(check: Judge, counts: Counts, sentence: str) -> None:
    result = check(two_tasks(), [], counts)
    assert result.outcome is Outcome.FAILED
    assert result.findings[0].sentence.startswith(sentence)


def test_an_access_that_never_happened_is_not_expected_on_a_page() -> None:
    findings = [found(FindingKind.WRITE_NEVER_HAPPENED), found(FindingKind.READ_NEVER_HAPPENED)]
    assert check_accesses(two_tasks(), findings, replace(LOOKED, pages=1)).count == 2
