"""What results of checks say of what they compared; mutants of these sentences and counts were caught by no test."""

from __future__ import annotations

import pytest

from starpullm.checks.accesses import check_accesses, check_poison
from starpullm.checks.dependencies import check_observed
from starpullm.checks.observer import FindingKind
from starpullm.checks.task_name import TaskName

from .test_accesses import found, two_tasks
from .test_dependencies import R, W, make_trace


@pytest.mark.parametrize(
    ("sub_batch", "layer", "text"),
    [
        (-1, -1, "gelu_forward (step 2)"),
        (0, -1, "gelu_forward (step 2, sub-batch 0)"),
        (0, 0, "gelu_forward (step 2, sub-batch 0, layer 0)"),
    ],
)
def test_a_task_is_named_with_layer_and_sub_batch_0(sub_batch: int, layer: int, text: str) -> None:
    assert str(TaskName(7, "gelu_forward", 2, sub_batch, layer, 0, 1)) == text


def test_findings_that_are_all_listed_are_not_summed_up() -> None:
    result = check_accesses(two_tasks(), [found(FindingKind.UNDECLARED_READ)])
    assert list(result.detail_lines()) == [str(result.findings[0])]


def test_checks_have_their_names() -> None:
    assert [check(two_tasks(), []).name for check in (check_accesses, check_poison)] == ["accesses", "poison"]


def test_the_compared_edges_are_counted() -> None:
    result = check_observed(make_trace([[(0, W)], [(0, R)], [(1, W)]], starts=[0, 5, 0], ends=[4, 6, 1]))
    assert (result.num_required, result.compared) == (1, 1)
