"""The demo: a small GPT-2 is trained on Shakespeare's sonnets, on several placements with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from starpullm.data.generator import initial_checkpoint
from starpullm.data.loader import TokenLoader
from starpullm.data.models import MODELS
from starpullm.data.text import byte_encoding
from starpullm.files.tokens import write_tokens
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer
from starpullm.training.loop import StepReport, check_finite, train

CONFIG = MODELS["demo"]
BATCH_SIZE, SEQ_LEN = 4, 64
NUM_STEPS = 1500
LEARNING_RATE = 1e-3
SEED = 42


class DemoRun(NamedTuple):
    """The results of one run: the bits of all losses, its speed, and the hash of parameters, m and v."""

    losses: tuple[bytes, ...]
    tokens_per_ms: float
    state_sha256: str


def prepare(directory: Path) -> tuple[Path, Path]:
    """Write an untrained model, and the sonnets of the package with one token per byte; return the paths."""
    text = resources.files("starpullm.training").joinpath("sonnets.txt").read_bytes().decode("utf-8")
    model, tokens = directory / "untrained.bin", directory / "sonnets.tokens.bin"
    initial_checkpoint(model, CONFIG, SEED)
    write_tokens(tokens, byte_encoding().encode(text))
    return model, tokens


def run(
    checkpoint: Path,
    tokens: Path,
    partition: str,
    sub_batches: int,
    report: Callable[[StepReport], None],
    save: Path | None = None,
) -> DemoRun:
    """Train from a checkpoint on a partition; ``report`` is called after each step."""
    loader = TokenLoader(tokens, BATCH_SIZE, SEQ_LEN, vocab_size=CONFIG.vocab_size)
    losses: list[bytes] = []
    with (
        Runtime(partition) as runtime,
        Trainer(
            runtime,
            checkpoint,
            batch_size=BATCH_SIZE,
            seq_len=SEQ_LEN,
            sub_batches=sub_batches,
            learning_rate=LEARNING_RATE,
        ) as trainer,
    ):
        for step in train(trainer, loader, NUM_STEPS):
            losses.append(step.loss.tobytes())
            report(step)
            check_finite(f"step {step.step}, loss", step.loss)
        digest = hashlib.sha256()
        for group in ("params", "m", "v"):
            for name in trainer.tensor_names(group):
                digest.update(trainer.tensor(group, name).tobytes())
        if save is not None:
            trainer.save_checkpoint(save)
    return DemoRun(tuple(losses), step.tokens_per_ms, digest.hexdigest())
