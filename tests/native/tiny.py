"""A trainer of the record ``tiny`` in a child process, its batches and its bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record

TINY = shipped_record("tiny")
B, T, V = TINY.batch_size, TINY.seq_len, TINY.model.vocab_size

Tokens = NDArray[np.int32]


def batch(step: int = 0) -> tuple[Tokens, Tokens]:
    return generate_tokens(TINY.seed, step, B, T, V)


@contextmanager
def tiny_trainer(partition: str, checkpoint: str | None, **options: Any) -> Iterator[Trainer]:
    sizes = {"batch_size": B, "seq_len": T}
    with Runtime(partition) as runtime, Trainer(runtime, checkpoint, **{**sizes, **options}) as trainer:
        yield trainer


def bits_of(trainer: Trainer) -> str:
    """Return one hash of all bits of the parameters and of AdamW's m and v."""
    digest = hashlib.sha256()
    for group in ("params", "m", "v"):
        for name in trainer.tensor_names(group):
            digest.update(trainer.tensor(group, name).tobytes())
    return digest.hexdigest()
