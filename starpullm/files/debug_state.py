"""llm.c's debug state: inputs, logits, loss and gradients of one forward and backward pass.

Size letters: B batch, T sequence length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError, TokenRangeError
from starpullm.files.arrays import FLOAT32, bytes_of, check_array, check_ids, first_outside, read_array
from starpullm.files.atomic import atomic_write
from starpullm.files.header import (
    DEBUG_STATE_MAGIC,
    HEADER_BYTES,
    INT32,
    StrPath,
    check_size,
    check_version,
    header_bytes,
    read_header,
    reading,
    refusal,
)
from starpullm.files.model import ModelConfig, checked_tensors, read_tensors, tensor_sections

DEBUG_STATE_VERSION: Final = 2


@dataclass(frozen=True, eq=False)
class DebugState:
    """The results of one forward and backward pass, with which a run is compared.

    Parameters
    ----------
    config
        Sizes of the model (the file itself contains only B and T).
    inputs, targets
        Token ids, int32 (B,T).
    logits
        float32 (B,T,V), without padding.
    loss
        The mean loss.
    gradients
        Name to float32 array, with the names and shapes of `parameter_shapes`.

    Raises
    ------
    InvalidArgumentError
        If an array has another shape or dtype.
    TokenRangeError
        If an id isn't in [0, V).
    """

    config: ModelConfig
    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    logits: NDArray[np.float32]
    loss: float
    gradients: dict[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        """Check the arrays against the sizes."""
        if self.inputs.ndim != 2 or self.inputs.size == 0:
            raise InvalidArgumentError(f"inputs: expected the shape (B,T), found {self.inputs.shape}")
        batch_size, seq_len = self.inputs.shape
        if seq_len > self.config.max_seq_len:
            raise InvalidArgumentError(f"inputs: expected T to be at most {self.config.max_seq_len}, found {seq_len}")
        check_array("inputs", self.inputs, (batch_size, seq_len), INT32)
        check_array("targets", self.targets, (batch_size, seq_len), INT32)
        check_array("logits", self.logits, (batch_size, seq_len, self.config.vocab_size), FLOAT32)
        object.__setattr__(self, "gradients", checked_tensors(self.config, self.gradients, "gradients"))
        for name, ids in (("inputs", self.inputs), ("targets", self.targets)):
            index = first_outside(ids, self.config.vocab_size)
            if index is not None:
                raise TokenRangeError(
                    f"{name}, element {index}: expected a token id in [0, {self.config.vocab_size}), "
                    f"found {ids.reshape(-1)[index]}"
                )


def read_debug_state(path: StrPath, config: ModelConfig, *, mmap: bool = False) -> DebugState:
    """Read llm.c's debug state.

    Parameters
    ----------
    path
        The file.
    config
        Sizes of the model; the file contains only B and T.
    mmap
        True: logits and gradients are read-only views of the mapped file. False: they are read into memory.

    Raises
    ------
    FormatError
        If the file isn't a debug state of this model, or its size is wrong.
    TokenRangeError
        If a token id isn't in [0, V).
    FileError
        If the file can't be read.
    OutOfMemoryError
        If there isn't enough memory for the arrays.
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
        sections = [
            ("x", 4 * positions),
            ("y", 4 * positions),
            ("logits", 4 * positions * config.vocab_size),
            ("loss", 4),
            *tensor_sections(config),
        ]
        check_size(file, where, sections)
        ids = read_array(file, where, INT32, HEADER_BYTES, 2 * positions, mmap=False)
        check_ids(where, ids, HEADER_BYTES, config.vocab_size)
        end = HEADER_BYTES + ids.nbytes
        logits = read_array(file, where, FLOAT32, end, positions * config.vocab_size, mmap=mmap)
        end += logits.nbytes
        loss = read_array(file, where, FLOAT32, end, 1, mmap=False)
        end += loss.nbytes
        gradients = read_tensors(file, where, config, end, mmap=mmap)
        inputs, targets = ids.reshape(2, batch_size, seq_len)
        logits = logits.reshape(batch_size, seq_len, config.vocab_size)
        return DebugState(config, inputs, targets, logits, float(loss[0]), gradients)


def write_debug_state(path: StrPath, state: DebugState) -> None:
    """Write a debug state; after a failure an existing file is unchanged.

    Raises
    ------
    FileError
        If the file can't be written.
    """
    batch_size, seq_len = state.inputs.shape
    with atomic_write(path) as file:
        file.write(header_bytes(DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, batch_size, seq_len))
        file.write(bytes_of(state.inputs, INT32))
        file.write(bytes_of(state.targets, INT32))
        file.write(bytes_of(state.logits, FLOAT32))
        file.write(bytes_of(np.array([state.loss], FLOAT32), FLOAT32))
        for array in state.gradients.values():
            file.write(bytes_of(array, FLOAT32))
