"""The record that the limits are tried with, its batches, and limits of the library's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record

TINY = shipped_record("tiny")
B, T, MODEL = TINY.batch_size, TINY.seq_len, TINY.model
TENSORS = 4 + 12 * MODEL.num_layers
"""Those of a model; each layer has 12 of them."""

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def batch(number: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return generated inputs and targets (B, T)."""
    return generate_tokens(1, number, B, T, MODEL.vocab_size)
