"""What tree and redux do over several steps: bits, losses, gradients, and how much memory each mode takes.

Collected by pytest; the runs are in child processes. Single steps are in the suite.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.checks.reduction import GradientBounds
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record

from .children import TWO_CORES, run_function

STEPS = 3
SUB_BATCHES = 4
TIME_LIMIT = 100.0

# Two binary32 sums of the same terms in other orders; three updates in between.
LOSS_TOLERANCE = 1e-5


def small_trainer(runtime: Runtime, checkpoint: str, reduction: str, sub_batches: int, **options: Any) -> Trainer:
    record = shipped_record("small")
    return Trainer(
        runtime,
        checkpoint,
        batch_size=record.batch_size,
        seq_len=record.seq_len,
        sub_batches=sub_batches,
        reduction=reduction,
        **options,
    )


def batch(step: int) -> tuple[Any, Any]:
    record = shipped_record("small")
    return generate_tokens(record.seed, step, record.batch_size, record.seq_len, record.model.vocab_size)


def trained_state(
    checkpoint: str, reduction: str, sub_batches: int, placements: list[tuple[str, str]], weight_gradients: str = "kept"
) -> dict[str, str]:
    """Hash all bits of the losses, the parameters, m and v after the last step, for each partition and scheduler."""
    digests = {}
    for partition, scheduler in placements:
        with (
            Runtime(partition, scheduler) as runtime,
            small_trainer(runtime, checkpoint, reduction, sub_batches, weight_gradients=weight_gradients) as trainer,
        ):
            losses = [trainer.submit(*batch(step)) for step in range(STEPS)]
            digest = hashlib.sha256(b"".join(loss.result().tobytes() for loss in losses))
            for group in ("params", "m", "v"):
                for name in trainer.tensor_names(group):
                    digest.update(trainer.tensor(group, name).tobytes())
            digests[f"{partition} {scheduler}"] = digest.hexdigest()
    return digests


def test_bits_of_the_tree_depend_on_sub_batches_alone(small_checkpoint: Path) -> None:
    def run(reduction: str, sub_batches: int, placements: list[tuple[str, str]]) -> dict[str, str]:
        return run_function(
            trained_state,
            small_checkpoint,
            reduction,
            sub_batches,
            placements,
            timeout=TIME_LIMIT,
            environment=TWO_CORES,
        )

    everywhere = list(itertools.product(("1x1", "2x1", "1x2"), ("eager", "lws", "random")))
    digests = run("tree", SUB_BATCHES, everywhere)
    assert len(set(digests.values())) == 1, digests
    # The sum has another shape than the chain's, else nothing would have been shown.
    (tree,) = set(digests.values())
    assert run("ordered", SUB_BATCHES, [("1x1", "lws")])["1x1 lws"] != tree
    # A tree of one leaf is the whole batch's chain.
    assert run("tree", 1, [("1x2", "lws")]) == run("ordered", SUB_BATCHES, [("1x2", "lws")])


@pytest.mark.parametrize("reduction", ["tree", "redux"])
def test_reused_gradients(small_checkpoint: Path, reduction: str) -> None:
    """On one worker with one sub-batch no bits of redux vary; those of ordered are llm.c's in the suite."""
    kept, reused = (
        run_function(trained_state, small_checkpoint, reduction, 1, [("1x1", "lws")], of, environment=TWO_CORES)
        for of in ("kept", "reused")
    )
    assert kept == reused


def losses_and_gradients(checkpoint: str, reduction: str, partition: str) -> tuple[list[float], Any]:
    with (
        Runtime(partition) as runtime,
        small_trainer(runtime, checkpoint, reduction, SUB_BATCHES, keep_activations=True) as trainer,
    ):
        losses = [float(trainer.step(*batch(step))) for step in range(STEPS)]
        inputs, _ = batch(STEPS - 1)
        return losses, GradientBounds().judge(trainer.tensor, trainer.config, inputs, SUB_BATCHES).as_json()


@pytest.mark.parametrize("reduction", ["tree", "redux"])
def test_losses_and_last_gradients(small_checkpoint: Path, reduction: str) -> None:
    """Buffers that a step leaves behind unlike the first would show in the third."""
    runs = {
        mode: run_function(
            losses_and_gradients, small_checkpoint, mode, "2x1", timeout=TIME_LIMIT, environment=TWO_CORES
        )
        for mode in ("ordered", reduction)
    }
    losses, gradients = runs[reduction]
    np.testing.assert_allclose(losses, runs["ordered"][0], rtol=LOSS_TOLERANCE, atol=0)
    assert gradients["outcome"] == "passed", gradients
    assert 0 < gradients["measured"] <= 1


def gradient_handles(checkpoint: str, reduction: str) -> dict[str, int]:
    """Names of the handles of gradients of parameters, and their bytes."""
    with Runtime("2x1") as runtime, small_trainer(runtime, checkpoint, reduction, SUB_BATCHES, trace=True) as trainer:
        trainer.step(*batch(0))
        return {handle.name: handle.bytes for handle in trainer.trace().handles if handle.name.startswith("grads/")}


def test_memory_of_each_mode(small_checkpoint: Path) -> None:
    ordered, tree, redux = (
        run_function(gradient_handles, small_checkpoint, reduction, timeout=TIME_LIMIT, environment=TWO_CORES)
        for reduction in ("ordered", "tree", "redux")
    )
    sizes: Counter[str] = Counter()
    for name, size in ordered.items():
        sizes[name.partition("%")[0]] += size  # of all its tiles
    assert len(sizes) == 4 + 12 * shipped_record("small").model.num_layers < len(ordered)
    assert tree == {f"{name}#{s}": size for name, size in sizes.items() for s in range(SUB_BATCHES)}
    # The sets per worker are StarPU's own.
    assert redux == sizes
