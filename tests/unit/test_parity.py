"""Tests of what the parity check knows without running anything: the order in which it compares."""

from __future__ import annotations

import pytest

from starpullm.checks.execution_order import execution_order
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record


@pytest.mark.parametrize("name", SHIPPED_RECORDS)
def test_every_tensor_of_a_record_is_compared_once(name: str) -> None:
    record = shipped_record(name)
    order = [
        (group, tensor if layer is None else f"{tensor}[{layer}]")
        for group, tensor, layer in execution_order(record.model.num_layers)
    ]
    for step in record.steps:
        recorded = [(group, tensor) for group, tensors in step.digests.items() for tensor in tensors]
        assert sorted(order) == sorted(recorded)


def test_causes_come_before_effects() -> None:
    order = list(execution_order(2))
    chain = [
        ("activations", "encoded", None),
        ("activations", "att", 0),
        ("activations", "ln1", 1),
        ("activations", "losses", None),
        ("activation_grads", "logits", None),
        ("grads", "lnfw", None),
        ("activation_grads", "residual3", 1),
        ("grads", "fcprojw", 1),
        ("activation_grads", "ln1", 1),
        ("activation_grads", "residual3", 0),
        ("activation_grads", "encoded", None),
        ("grads", "wte", None),
        ("m", "wte", None),
        ("params", "lnfb", None),
    ]
    positions = [order.index(entry) for entry in chain]
    assert positions == sorted(positions)
