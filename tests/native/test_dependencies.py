"""The dependency checks on real runs: StarPU's graph has the required order, and reused handles cost nothing.

Collected by pytest; the runs are in child processes. That runs keep the order is the suite's to check, on every
placement; faults that the checks must find are in tests/unit/test_dependencies.py.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.checks.dependencies.reuse import HandleReuse, typical_durations
from starpullm.checks.dependencies.runtime_graph import RuntimeGraph
from starpullm.checks.observer import Observer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.model import ModelConfig
from starpullm.options import REDUCTIONS
from starpullm.trace import Trace

from .children import TWO_CORES, run_function

STEPS = 6


def traced_run(directory: str, sub_batches: int, keep_activations: bool) -> Trace:
    config = ModelConfig(max_seq_len=32, vocab_size=61, num_layers=3, num_heads=2, channels=48, padded_vocab_size=64)
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, config, 1)
    with (
        Runtime("2x1") as runtime,
        Trainer(
            runtime,
            checkpoint,
            batch_size=4,
            seq_len=32,
            sub_batches=sub_batches,
            keep_activations=keep_activations,
            steps_in_flight=3,
            trace=True,
        ) as trainer,
    ):
        for step in range(STEPS):
            trainer.submit(*generate_tokens(1, step, 4, 32, 61))
        return trainer.trace()


def runtime_graphs(directory: str, partition: str, sub_batches: int, reduction: str) -> Any:
    """The check's result with StarPU's edges as they are, without those into one task, and with one too many."""
    config = ModelConfig(max_seq_len=32, vocab_size=61, num_layers=2, num_heads=2, channels=48, padded_vocab_size=64)
    checkpoint = Path(directory) / "model.bin"
    generate_checkpoint(checkpoint, config, 1)
    with (
        Runtime(partition) as runtime,
        Trainer(
            runtime, checkpoint, batch_size=4, seq_len=32, sub_batches=sub_batches, reduction=reduction, trace=True
        ) as trainer,
    ):
        observer = Observer(trainer)
        observer.hold()
        losses = [trainer.submit(*generate_tokens(1, step, 4, 32, 61)) for step in range(2)]
        time.sleep(0.2)
        assert not any(loss.ready for loss in losses)
        edges = observer.release()
        trace = trainer.trace()
        assert all(loss.ready for loss in losses)
    update = next(task.id for task in trace if task.operation == "adamw_update")
    encoders = [task.id for task in trace if task.operation == "encoder_forward"]
    return {
        "as it is": RuntimeGraph().judge(trace, edges).as_json(),
        "an update that waits for nothing": RuntimeGraph().judge(trace, edges[edges[:, 1] != update]).as_json(),
        "sub-batches in order": RuntimeGraph().judge(trace, np.vstack([edges, [encoders[:2]]])).as_json(),
    }


@pytest.mark.parametrize(("partition", "sub_batches"), [("1x1", 2), ("2x1", 4), ("1x2", 2)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_runtime_s_graph_is_the_required_order(
    tmp_path: Path, partition: str, sub_batches: int, reduction: str
) -> None:
    found = run_function(runtime_graphs, tmp_path, partition, sub_batches, reduction, environment=TWO_CORES)
    graph = found["as it is"]
    assert graph["outcome"] == "passed", graph
    assert graph["compared"] > 200
    fewer, more = found["an update that waits for nothing"], found["sub-batches in order"]
    assert (fewer["outcome"], fewer["facts"]["superfluous"]) == ("failed", [])
    assert all("→ adamw_update (" in finding["sentence"] for finding in fewer["findings"])
    assert (more["outcome"], more["facts"]["missing"], more["count"]) == ("failed", [], 1)


def reuse(directory: str, sub_batches: int, keep_activations: bool) -> Any:
    trace = traced_run(directory, sub_batches, keep_activations)
    return HandleReuse().judge(trace, typical_durations(trace)).as_json()


@pytest.mark.parametrize("keep_activations", [False, True])
@pytest.mark.parametrize("sub_batches", [1, 2])
def test_reuse_by_the_next_step_adds_nothing_to_the_critical_path(
    tmp_path: Path, sub_batches: int, keep_activations: bool
) -> None:
    """Figure 1's dotted edges: there are some that nothing else implies, and none of them costs any time."""
    result = run_function(reuse, tmp_path, sub_batches, keep_activations)
    assert result["outcome"] == "passed", result
    assert result["measured"] == 0
    assert result["facts"]["not_implied"] > 0
    groups = {re.split("[/@]", tensor)[0] for tensor in result["facts"]["reused"]}
    assert groups <= {"activations", "activation_grads", "mean_loss"}
