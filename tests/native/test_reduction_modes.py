"""What tree and redux do over several steps: bits, losses, gradients, and how much memory each mode takes.

Single steps are in the suite.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record

from .children import TWO_CORES, run_function

STEPS = 3
SUB_BATCHES = 4
TIME_LIMIT = 100.0


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
