"""The labels of traces, from traces that are made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from starpullm.checks.labels import wrong_labels
from starpullm.trace import Trace

from ..native.foreign_values import foreign_values
from .traces import trace_of

NAMES = (
    "params/wte",
    "params/ln1w[1]",
    "activations/ln1[1]#0",
    "activations/ln1[1]#3",
    "activation_grads/losses/rank0",
    "inputs@2#3",
    "grads/wte#3",
    "mean_loss@1",
)


def make_trace(accessed: str, **fields: Any) -> Trace:
    """Two tasks, the second of which accesses one handle and has these fields; four sub-batches."""
    trace = trace_of([[], [(accessed, 1)]], dict.fromkeys(NAMES, 4), ("work", "transfer"), sub_batch=-1, layer=-1)
    trace.tasks["submit_ns"] = [5, 6]
    for name, value in fields.items():
        trace.tasks[name][1] = value
    return trace


@pytest.mark.parametrize(
    ("accessed", "fields"),
    [
        ("params/wte", {"sub_batch": 2, "rank": 1}),
        ("params/ln1w[1]", {"layer": 1}),
        ("activations/ln1[1]#3", {"sub_batch": 3, "layer": 0, "rank": 1}),  # a layer below reads another's output
        ("activation_grads/losses/rank0", {"sub_batch": 1}),
        ("inputs@2#3", {"sub_batch": 3, "rank": 1}),
        ("grads/wte#3", {"sub_batch": 2, "rank": 1}),
        ("mean_loss@1", {"submit_ns": 5}),
    ],
)
def test_right_labels(accessed: str, fields: dict[str, int]) -> None:
    assert list(wrong_labels(make_trace(accessed, **fields), 2)) == []


@pytest.mark.parametrize(
    ("accessed", "fields", "words"),
    [
        ("params/wte", {"layer": 0}, "found layer 0, expected that of params/wte"),
        ("params/ln1w[1]", {"layer": 0}, "found layer 0, expected that of params/ln1w[1]"),
        ("activations/ln1[1]#3", {"sub_batch": 0}, "found sub_batch 0, expected that of activations/ln1[1]#3"),
        ("inputs@2#3", {"sub_batch": 2, "rank": 1}, "found sub_batch 2, expected that of inputs@2#3"),
        ("mean_loss@1", {"sub_batch": 2}, "found rank 0, expected the home of its sub-batch"),
        ("mean_loss@1", {"sub_batch": 0, "rank": 1}, "found rank 1, expected the home of its sub-batch"),
        (
            "activation_grads/losses/rank0",
            {"sub_batch": 2, "rank": 1},
            "found rank 1, expected that of activation_grads/losses/rank0",
        ),
        ("mean_loss@1", {"worker": -2}, "found worker -2, expected -1 where this rank doesn't run it"),
        ("mean_loss@1", {"operation": 1}, "found accesses READ, expected WRITE, READ"),
        ("mean_loss@1", {"submit_ns": 4}, "submitted at 4 ns"),
        ("mean_loss@1", {"submit_ns": 0}, "submitted at 0 ns"),
    ],
)
def test_wrong_labels(accessed: str, fields: dict[str, int], words: str) -> None:
    (sentence,) = wrong_labels(make_trace(accessed, **fields), 2)
    assert words in sentence


def test_a_trace_without_times_is_wrong() -> None:
    trace = make_trace("mean_loss@1")
    trace.tasks["submit_ns"] = 0
    (sentence,) = wrong_labels(trace)
    assert "submitted at 0 ns" in sentence


R, W, RW = 1, 2, 3


@pytest.mark.parametrize(
    ("name", "reader", "is_foreign"),
    [
        ("activations/att#1", (R, 1, 2), False),
        ("activations/att#1", (R, 1, 1), True),  # of the block below
        ("activations/att~0", (R, 0, 2), True),  # of another sub-batch
        ("activation_grads/residual2#1", (RW, 1, 0), True),
        ("activations/att#1", (W, 0, 0), False),
        ("activations/residual3[2]#1", (R, 1, 3), False),  # the next block reads it
        ("grads/qkvw~0", (R, -1, 2), False),
        ("grads/qkvw~0", (R, -1, 0), True),
        ("grads/wte", (R, -1, -1), False),
    ],
)
def test_values_of_other_blocks(name: str, reader: tuple[int, int, int], is_foreign: bool) -> None:
    """A task of layer 2 of sub-batch 1 writes a handle; then a task with a mode, sub-batch and layer accesses it."""
    mode, *where = reader
    sub_batches, layers = zip((1, 2), where, strict=True)
    trace = trace_of([[(name, W)], [(name, mode)]], {name: 4}, sub_batch=sub_batches, layer=layers)
    found = list(foreign_values(trace))
    assert [f"value of {name}" in sentence for sentence in found] == [True] * is_foreign
