"""What results of checks say of what they compared; mutants of these sentences and counts were caught by no test."""

from __future__ import annotations

import numpy as np
import pytest

from starpullm.checks.accesses import check_accesses, check_poison
from starpullm.checks.dependencies import check_observed, check_reuse
from starpullm.checks.observer import FindingKind
from starpullm.checks.perturbation import Disturbance, check_perturbed
from starpullm.checks.reduction import Promise, check_bit_stability
from starpullm.checks.reduction.gradient_error import TensorError, gradient_error
from starpullm.checks.task_name import TaskName
from starpullm.errors import InvalidArgumentError

from .test_accesses import found, two_tasks
from .test_dependencies import R, W, make_trace
from .test_reduction import REFERENCES, run


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
    assert (result.num_required, result.num_compared) == (1, 1)


def test_reuse_is_counted_by_handle_and_told_with_the_limit() -> None:
    flow = [[(0, W)], [(0, R), (1, W)], [(0, W)], [(0, R), (2, W)]]
    result = check_reuse(make_trace(flow), fresh="write", durations=np.array([30, 50, 20, 10]))
    assert [(entry.handle, entry.num_added, entry.num_not_implied) for entry in result.handles] == [("h0", 1, 1)]
    assert result.finding.startswith("1 edges added, 1 not implied; the critical path grows by 37.500%")
    assert result.finding.endswith(", expected at most 0.000%")


def test_disturbed_runs_are_held_to_0_differences() -> None:
    tensors = {"x": np.zeros(2, np.float32)}
    result = check_perturbed(Disturbance("2x1", "lws", 1, 0), tensors, tensors)
    assert (result.measured, result.limit) == (0, 0)


def test_bits_are_compared_with_the_golden_run_by_name() -> None:
    result = check_bit_stability({"a": run(4, 6)}, Promise.BITWISE, golden=run(4, 5))
    assert [difference.against for difference in result.differences] == ["golden"]
    with pytest.raises(InvalidArgumentError, match=r"^references: found tensors \['x'\]"):
        check_bit_stability({"a": run(4, 6)}, Promise.BOUNDED, references={"x": REFERENCES["x"]})


def test_an_error_without_an_explanation_ends_with_its_limit() -> None:
    error: TensorError = gradient_error("x", np.array([4, 7], np.float32), REFERENCES["x"])
    assert not error.explained_by
    assert not str(error).endswith("; ")
