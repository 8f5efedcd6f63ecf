"""The order of a tree reduction's additions, from traces that are made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.checks.result import Outcome
from starpullm.checks.tree import OrderOfTheTree, Sum, expected_sum, sum_text
from starpullm.errors import InvalidArgumentError
from starpullm.trace import AccessMode, Trace

from .traces import trace_of

TENSORS = ("wte", "ln1w[1]")
R, W, RW, _ = AccessMode


def make_trace(additions: Iterable[tuple[int, int]], *, steps: int = 2, sub_batches: int = 8, update: int = 0) -> Trace:
    """Add the same sub-batches' gradients of each tensor in each step, then update the tensor."""
    names = [f"grads/{tensor}#{s}" for tensor in TENSORS for s in range(sub_batches)]
    names += [f"params/{tensor}" for tensor in TENSORS]
    additions = list(additions)
    operations = ("adamw_update", "gradient_add")
    flow = []
    for step, (number, tensor) in itertools.product(range(steps), enumerate(TENSORS)):
        first = number * sub_batches
        flow += [(step, 1, [(first + source, R), (first + to, RW)]) for to, source in additions]
        flow.append((step, 0, [(names.index(f"params/{tensor}"), RW), (first + update, R)]))
    of_steps, of_operations, accesses = zip(*flow, strict=True)
    return trace_of(accesses, dict.fromkeys(names, 4), operations, step=of_steps, operation=of_operations)


@pytest.mark.parametrize(
    ("sub_batches", "text", "additions"),
    [
        (2, "(0 + 1)", [(0, 1)]),
        (3, "((0 + 1) + 2)", [(0, 1), (0, 2)]),
        (4, "((0 + 1) + (2 + 3))", [(2, 3), (0, 1), (0, 2)]),
        (5, "(((0 + 1) + (2 + 3)) + 4)", [(0, 1), (2, 3), (0, 2), (0, 4)]),
        (6, "(((0 + 1) + (2 + 3)) + (4 + 5))", [(0, 1), (2, 3), (4, 5), (0, 2), (0, 4)]),
    ],
)
def test_the_described_order(sub_batches: int, text: str, additions: list[tuple[int, int]]) -> None:
    assert sum_text(expected_sum(0, sub_batches)) == text
    result = OrderOfTheTree().judge(make_trace(additions), sub_batches)
    assert (result.outcome, result.compared, result.measured) == (Outcome.PASSED, 4, 0)


@pytest.mark.parametrize(
    ("additions", "found"),
    [
        ([(0, 1), (0, 2), (0, 3)], "(((0 + 1) + 2) + 3)"),  # a chain
        ([(0, 1), (0, 2), (2, 3)], "((0 + 1) + 2)"),  # a part is added too late
        ([(0, 1), (2, 3)], "(0 + 1)"),
        ([(0, 1), (3, 2), (0, 3)], "((0 + 1) + (3 + 2))"),
        ([(0, 2), (1, 3), (0, 1)], "((0 + 2) + (1 + 3))"),
        ([], "0"),
    ],
)
def test_another_order_fails(additions: list[tuple[int, int]], found: str) -> None:
    result = OrderOfTheTree().judge(make_trace(additions, steps=1), 4)
    assert (result.outcome, result.compared, result.measured) == (Outcome.FAILED, 2, 2)
    assert result.findings[0].sentence == f"wte, step 0: found {found}, expected ((0 + 1) + (2 + 3))"


def test_an_update_with_a_part_of_the_sum_fails() -> None:
    result = OrderOfTheTree().judge(make_trace([(2, 3), (0, 1), (0, 2)], update=2), 4)
    assert result.measured == 4
    assert result.findings[-1].sentence == "ln1w[1], step 1: found (2 + 3), expected ((0 + 1) + (2 + 3))"


def test_another_tensor_s_gradient_fails() -> None:
    trace = make_trace([(0, 1)], steps=1)
    trace.accesses["handle"][0] += 8  # sub-batch 1 of the second tensor
    result = OrderOfTheTree().judge(trace, 2)
    assert (result.outcome, result.compared, result.measured) == (Outcome.FAILED, 2, 1)
    assert [finding.sentence for finding in result.findings] == [
        "wte, step 0: found the gradient of ln1w[1] added, expected its own"
    ]


def test_without_updates_nothing_is_compared() -> None:
    trace = make_trace([(0, 1)])
    trace.tasks["operation"] = 1
    with pytest.raises(InvalidArgumentError, match="nothing was compared"):
        OrderOfTheTree().judge(Trace(trace.tasks[:0], trace.accesses, trace.operations, trace.handles), 2)


@given(st.integers(1, 300))
def test_every_sub_batch_is_added_once_and_in_as_few_levels_as_possible(count: int) -> None:
    def leaves(of: Sum) -> list[int]:
        return [of] if isinstance(of, int) else leaves(of[0]) + leaves(of[1])

    def depth(of: Sum) -> int:
        return 0 if isinstance(of, int) else 1 + max(map(depth, of))

    assert leaves(expected_sum(0, count)) == list(range(count))
    assert depth(expected_sum(0, count)) == (count - 1).bit_length()
