"""What results of checks say of what they compared; mutants of these sentences and counts were caught by no test."""

from __future__ import annotations

import numpy as np
import pytest

from starpullm.checks.accesses import Accesses
from starpullm.checks.names import TaskName
from starpullm.checks.observer import FindingKind
from starpullm.checks.reduction import GradientBounds, gradient_error
from starpullm.checks.result import MAX_LISTED, json_value

from .test_accesses import LOOKED, found, two_tasks
from .test_dependencies import R, W, check_observed, check_reuse, make_trace
from .test_reduction import sum_reference


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
    result = Accesses().judge(two_tasks(), [found(FindingKind.UNDECLARED_READ)], LOOKED)
    assert len(result.lines()) == 1


def test_a_run_that_broke_the_order_is_described() -> None:
    flow = [[(0, W)], [(0, R)], [(1, W)]]
    result = check_observed(make_trace(flow, starts=[0, 5, 0], ends=[9, 6, 1]))
    assert result.compared == 1
    assert result.lines() == [
        "observed order: failed: a task began before one had ended that it has to wait for (1 in 1 required edges): "
        "work (step 0) → [h0] work (step 0): the last started 4 ns before the end of the first; up to 2 tasks at a "
        "time, 3 pairs not as submitted",
    ]


def test_many_violations_are_counted_and_some_listed() -> None:
    count = MAX_LISTED + 3
    trace = make_trace([[(0, W)], *[[(0, R)]] * count], starts=[0] * (count + 1), ends=[5] * (count + 1))
    result = check_observed(trace)
    assert (result.measured, len(result.findings)) == (count, MAX_LISTED)
    assert result.lines()[-1] == "  … and 3 more"


def test_what_reuse_costs_is_described() -> None:
    """A buffer that two independent chains share, and one that the second step writes after all of the first."""
    flow = [[(0, W)], [(0, R), (1, W)], [(0, W)], [(0, R), (2, W)]]
    result = check_reuse(make_trace(flow, steps=[0, 0, 1, 1]), np.array([30, 50, 20, 10]) * 10**6)
    assert result.lines() == [
        "handle reuse: failed: reused buffers lengthen the critical path (2 in 1 added edges): on the critical path: "
        "work (step 0) → work (step 1): write after read of h0; critical path 0.110000 s, without reuse 0.080000 s; "
        "1 edges not implied",
        "  not implied: 1 edges of h0, for example work (step 0) → work (step 1): write after read of h0",
    ]


def test_the_name_of_a_task_has_its_worker() -> None:
    assert TaskName.of(two_tasks(worker=5)[1]) == TaskName(1, "attention_forward", 2, 1, 3, 0, 5)


def test_arrays_and_mappings_are_json() -> None:
    assert json_value({1: np.array([1.5, np.inf]), "n": {"m": np.int64(2)}}) == {"1": [1.5, "inf"], "n": {"m": 2}}


def test_reuse_without_times_grows_by_nothing() -> None:
    trace = make_trace([[(0, W)], [(0, R)]] * 2, steps=[0, 0, 1, 1])
    result = check_reuse(trace, np.zeros(4, np.int64))
    assert result.measured == 0
    assert result.sentence.startswith("no task took any time; ")


def test_gradients_beyond_their_limit_are_listed() -> None:
    reference = sum_reference([np.array([1, 8], np.float32), np.array([3, -2], np.float32)])
    near, far = (
        gradient_error(name, np.array(values, np.float32), reference)
        for name, values in (("near", [4, 6]), ("far", [4, 7]))
    )
    result = GradientBounds().of_errors([far, near], 4)
    assert [finding.sentence for finding in result.findings] == [str(far)]
    passed = GradientBounds().of_errors([near], 2).sentence
    assert passed.endswith(f"the largest error is {near.ratio:.3g} of its bound")
