"""The reduction checks on real runs: gradients within their bounds, and bits as stable as each mode promises.

Collected by pytest; the runs are in child processes. Faults that the checks must find are in
tests/unit/test_reduction.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm import Runtime, Trainer
from starpullm.checks.cases import PROMISES, Promise
from starpullm.checks.reduction import GradientBounds, gradient_error
from starpullm.checks.reference64 import gradient_references
from starpullm.checks.same_bits import BitStability
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record
from starpullm.trainer import REDUCTIONS

from .children import TWO_CORES, run_function


def one_step(checkpoint: str, name: str, runtime: Runtime, sub_batches: int, reduction: str) -> Trainer:
    """A trainer that has done the first step of a record, and is to be closed."""
    record = shipped_record(name)
    trainer = Trainer(
        runtime,
        checkpoint,
        batch_size=record.batch_size,
        seq_len=record.seq_len,
        sub_batches=sub_batches,
        reduction=reduction,
        keep_activations=True,
    )
    trainer.step(*first_batch(name))
    return trainer


def first_batch(name: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    record = shipped_record(name)
    return generate_tokens(record.seed, 0, record.batch_size, record.seq_len, record.model.vocab_size)


def gradients(checkpoint: str, name: str, sub_batches: int, reduction: str) -> Any:
    with Runtime("2x1") as runtime, one_step(checkpoint, name, runtime, sub_batches, reduction) as trainer:
        inputs, _ = first_batch(name)
        return GradientBounds().judge(trainer.tensor, trainer.config, inputs, sub_batches).as_json()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "sub_batches"), [("tiny", 1), ("tiny", 2), ("small", 1), ("small", 4)])
def test_gradients_are_within_their_bounds(
    record_checkpoint: Callable[[str], Path], name: str, sub_batches: int, reduction: str
) -> None:
    checkpoint = record_checkpoint(name)
    result = run_function(gradients, checkpoint, name, sub_batches, reduction, environment=TWO_CORES)
    assert result["outcome"] == "passed", result
    assert 0 < result["measured"] <= 1
    assert len(result["facts"]["tensors"]) == 4 + 12 * shipped_record(name).model.num_layers


def stability(checkpoint: str, reduction: str) -> Any:
    runs: dict[str, dict[str, NDArray[np.float32]]] = {}
    ratios: list[float] = []
    inputs, _ = first_batch("small")
    # The last has other sub-batches, and so another sum where its shape depends on them.
    placements = [("1x1", "lws", 4), ("2x1", "lws", 4), ("2x1", "random", 4), ("2x1", "random", 4), ("1x1", "lws", 1)]
    for number, (partition, scheduler, sub_batches) in enumerate(placements):
        with (
            Runtime(partition, scheduler) as runtime,
            one_step(checkpoint, "small", runtime, sub_batches, reduction) as trainer,
        ):
            grads = {}
            for name, layer, reference in gradient_references(trainer.tensor, trainer.config, inputs):
                label = name if layer is None else f"{name}[{layer}]"
                grads[label] = trainer.tensor("grads", name, layer)
                ratios.append(gradient_error(label, grads[label], reference).ratio)
            runs[f"{number}: {partition} {scheduler}, sub-batches {sub_batches}"] = grads
    if PROMISES[reduction] is not Promise.BITWISE:
        runs.popitem()
    return {"same bits": BitStability().compare(runs).as_json(), "ratio": max(ratios)}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_bits_are_as_stable_as_promised(record_checkpoint: Callable[[str], Path], reduction: str) -> None:
    """Over partitions, schedulers and repetitions; `ordered` also over sub-batches."""
    result = run_function(stability, record_checkpoint("small"), reduction, environment=TWO_CORES)
    assert 0 < result["ratio"] <= 1
    if PROMISES[reduction] is not Promise.BOUNDED:
        assert result["same bits"]["outcome"] == "passed", result
