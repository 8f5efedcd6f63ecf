"""llm.c's debug state: inputs, logits, loss and gradients of one forward and backward pass.

Size letters: B batch, T sequence length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starpullm.files.arrays import FLOAT32, check_ids, read_array
from starpullm.files.header import (
    DEBUG_STATE_MAGIC,
    HEADER_BYTES,
    INT32,
    StrPath,
    check_size,
    check_version,
    read_header,
    reading,
    refusal,
)
from starpullm.files.model import ModelConfig, num_parameters, split_tensors, tensor_sections

DEBUG_STATE_VERSION: Final = 2


@dataclass(frozen=True, eq=False)
class DebugState:
    """The results of one forward and backward pass, with which a run is compared.

    Inputs and targets are (B,T), logits (B,T,V) without padding; gradients have the names, order and shapes of
    `parameter_shapes`. The file itself contains only B and T of the sizes.
    """

    config: ModelConfig
    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    logits: NDArray[np.float32]
    loss: float
    gradients: dict[str, NDArray[np.float32]]


def read_debug_state(path: StrPath, config: ModelConfig, *, mmap: bool = False) -> DebugState:
    """Read the debug state of a model of these sizes; with `mmap`, logits and gradients are views of the mapped file.

    Raises `FormatError` if the file isn't a debug state of this model, `TokenRangeError` if an id isn't in [0, V).
    """
    with reading(path) as (file, where):
        header = read_header(file, where, DEBUG_STATE_MAGIC)
        check_version(header, where, (DEBUG_STATE_VERSION,))
        batch_size, seq_len = header[2:4]
        if batch_size < 1:
            raise refusal(where, 8, "a positive batch size", str(batch_size))
        if not 1 <= seq_len <= config.max_seq_len:
            raise refusal(where, 12, f"a sequence length from 1 to {config.max_seq_len}", str(seq_len))
        positions = batch_size * seq_len
        logits_size = positions * config.vocab_size
        ids_bytes = 4 * positions
        sections = [("x", ids_bytes), ("y", ids_bytes), ("logits", 4 * logits_size), ("loss", 4)]
        check_size(file, where, [*sections, *tensor_sections(config)])
        count = 2 * positions + logits_size + 1 + num_parameters(config)
        body = read_array(file, where, INT32, HEADER_BYTES, count, mmap=mmap)
        ids, logits, loss, gradients = np.split(body, np.cumsum([2 * positions, logits_size, 1]))
        check_ids(where, ids, HEADER_BYTES, config.vocab_size)
        inputs, targets = ids.reshape(2, batch_size, seq_len)
        return DebugState(
            config,
            inputs,
            targets,
            logits.view(FLOAT32).reshape(batch_size, seq_len, config.vocab_size),
            float(loss.view(FLOAT32)[0]),
            split_tensors(gradients.view(FLOAT32), config),
        )
