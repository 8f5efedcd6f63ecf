"""llm.c's four file formats, read and written with NumPy: model checkpoint, debug state, tokenizer, tokens.

And our own training states, which a run resumes from. docs/formats.md describes them all.

The command line, data.py and the checks call it; it needs no native library.

Every file is little-endian and starts with a header of 256 int32: magic, version, then the format's own
counts. Size letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary, Vp padded
vocabulary, maxT the longest sequence.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    OutOfMemoryError,
    StarpullmError,
    TokenRangeError,
)

__all__ = [
    "GPT2_END_OF_TEXT",
    "HEADER_BYTES",
    "MAX_TOKEN_ID",
    "Checkpoint",
    "DebugState",
    "ModelConfig",
    "StrPath",
    "Tokenizer",
    "TrainingState",
    "atomic_write",
    "checkpoint_config",
    "checkpoint_header",
    "num_parameters",
    "parameter_shapes",
    "read_checkpoint",
    "read_debug_state",
    "read_tokenizer",
    "read_tokens",
    "read_training_state",
    "token_count",
    "write_checkpoint",
    "write_debug_state",
    "write_tokenizer",
    "write_tokens",
    "write_training_state",
]

StrPath: TypeAlias = str | os.PathLike[str]
_Scalar = TypeVar("_Scalar", bound=np.generic)

HEADER_INTS: Final = 256
HEADER_BYTES: Final = 4 * HEADER_INTS

CHECKPOINT_MAGIC: Final = 20240326
DEBUG_STATE_MAGIC: Final = 20240327
TOKENIZER_MAGIC: Final = 20240328
TOKENS_MAGIC: Final = 20240520
TRAINING_STATE_MAGIC: Final = 20261121
_KINDS: Final = {
    CHECKPOINT_MAGIC: "model checkpoint",
    DEBUG_STATE_MAGIC: "debug state",
    TOKENIZER_MAGIC: "tokenizer",
    TOKENS_MAGIC: "tokens",
    TRAINING_STATE_MAGIC: "training state",
}

CHECKPOINT_VERSION: Final = 3
CHECKPOINT_VERSION_BFLOAT16: Final = 5
DEBUG_STATE_VERSION: Final = 2
TOKENIZER_VERSIONS: Final = (1, 2)
TOKENS_VERSION: Final = 1
TRAINING_STATE_VERSION: Final = 1

GPT2_END_OF_TEXT: Final = 50256
"""The end-of-text id that a version 1 tokenizer implies."""

MAX_TOKEN_ID: Final = 2**16 - 1
"""The largest id that a token file holds."""

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_MAX_TOKEN_BYTES: Final = 255
_SCAN: Final = 1 << 22  # ids looked at in one go, so that a scan of a mapped file needs little memory

_INT32: Final = np.dtype("<i4")
_UINT16: Final = np.dtype("<u2")
_FLOAT32: Final = np.dtype("<f4")


# ---- What the files hold ----


@dataclass(frozen=True)
class ModelConfig:
    """A model's sizes, in the order of the checkpoint's header.

    Parameters
    ----------
    max_seq_len
        maxT, rows of the position table.
    vocab_size
        V, number of token ids.
    num_layers
        L, number of blocks.
    num_heads
        NH, heads per block.
    channels
        C, width of the residual stream.
    padded_vocab_size
        Vp, rows of the token table.

    Raises
    ------
    InvalidArgumentError
        If a size isn't positive or leaves int32, C isn't divisible by NH, Vp < V, or the checkpoint would
        have more bytes than a 64-bit position can count.
    """

    max_seq_len: int
    vocab_size: int
    num_layers: int
    num_heads: int
    channels: int
    padded_vocab_size: int

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        for field in fields(self):
            value = getattr(self, field.name)
            try:
                object.__setattr__(self, field.name, operator.index(value))
            except TypeError:
                raise InvalidArgumentError(
                    f"model config, {field.name}: expected an integer, found {value!r}"
                ) from None
        problem = _config_problem(asdict(self))
        if problem is not None:
            name, expected, found = problem
            raise InvalidArgumentError(f"model config, {name}: expected {expected}, found {found}")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model: its sizes and its parameters.

    Parameters
    ----------
    config
        The sizes.
    parameters
        Name to float32 array, with the names, shapes and order of `parameter_shapes`.

    Raises
    ------
    InvalidArgumentError
        If a name is missing or unknown, or an array has another shape or dtype.
    """

    config: ModelConfig
    parameters: dict[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        """Bring the parameters into the file's order, checking names, shapes and dtypes."""
        object.__setattr__(self, "parameters", _checked_tensors(self.config, self.parameters, "parameters"))


@dataclass(frozen=True, eq=False)
class DebugState:
    """What one forward and backward pass of llm.c gave, for comparison.

    Parameters
    ----------
    config
        Sizes of the model that it belongs to (the file itself only has B and T).
    inputs, targets
        Token ids, int32 (B,T).
    logits
        float32 (B,T,V): without the padding.
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
        _check_array("inputs", self.inputs, (batch_size, seq_len), _INT32)
        _check_array("targets", self.targets, (batch_size, seq_len), _INT32)
        _check_array("logits", self.logits, (batch_size, seq_len, self.config.vocab_size), _FLOAT32)
        object.__setattr__(self, "gradients", _checked_tensors(self.config, self.gradients, "gradients"))
        for name, ids in (("inputs", self.inputs), ("targets", self.targets)):
            index = _first_outside(ids, self.config.vocab_size)
            if index is not None:
                raise TokenRangeError(
                    f"{name}, element {index}: expected a token id in [0, {self.config.vocab_size}), "
                    f"found {ids.reshape(-1)[index]}"
                )


@dataclass(frozen=True)
class Tokenizer:
    """The bytes of every token id; decoding only, as in llm.c.

    Parameters
    ----------
    tokens
        The bytes of token 0, 1, …; each 1 to 255 bytes long.
    end_of_text
        Id of the end-of-text token.
    version
        Version of the file: 2 stores `end_of_text`, 1 implies 50256 and has exactly 50257 tokens.

    Raises
    ------
    InvalidArgumentError
        If a token has no or too many bytes, or version or end-of-text id don't fit.
    """

    tokens: tuple[bytes, ...]
    end_of_text: int
    version: int = 2

    def __post_init__(self) -> None:
        """Refuse what no tokenizer file can hold."""
        if self.version not in TOKENIZER_VERSIONS:
            raise InvalidArgumentError(f"tokenizer, version: expected 1 or 2, found {self.version}")
        implied = (GPT2_END_OF_TEXT + 1, GPT2_END_OF_TEXT)
        found = (len(self.tokens), self.end_of_text)
        if self.version == 1 and found != implied:
            raise InvalidArgumentError(
                f"tokenizer, version 1: expected {implied[0]} tokens and end-of-text {implied[1]}, "
                f"found {found[0]} and {found[1]}"
            )
        if not 0 <= self.end_of_text < len(self.tokens):
            raise InvalidArgumentError(
                f"tokenizer, end of text: expected an id in [0, {len(self.tokens)}), found {self.end_of_text}"
            )
        for index, token in enumerate(self.tokens):
            if not 1 <= len(token) <= _MAX_TOKEN_BYTES:
                raise InvalidArgumentError(
                    f"tokenizer, token {index}: expected 1 to {_MAX_TOKEN_BYTES} bytes, found {len(token)}"
                )

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return len(self.tokens)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the ids, one after the other.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """
        parts = []
        for position, token in enumerate(ids):
            if not 0 <= token < len(self.tokens):
                raise TokenRangeError(
                    f"token ids, element {position}: expected an id in [0, {len(self.tokens)}), found {token}"
                )
            parts.append(self.tokens[token])
        return b"".join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that aren't UTF-8 (half a character) become U+FFFD.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Everything that a run resumes from, after a step.

    Parameters
    ----------
    config
        The model's sizes.
    step
        Number of updates that led to it.
    batches
        Data position: number of batches taken, by all ranks together.
    batch_size, seq_len
        B and T of such a batch.
    params, m, v
        Name to float32 array, with the names, shapes and order of `parameter_shapes`.
    learning_rate, beta1, beta2, eps, weight_decay
        Of the updates so far; rounded to float32.
    run
        The run's own number, from 0 to 2^64 - 1.
    seed
        What generated tokens follow from, an int64.
    data_id
        Fingerprint of the data, from 0 to 2^64 - 1; 0 if there is none.
    blas
        1 if a BLAS computed the matmuls of some of its steps, so that its bits aren't strict; else 0.

    Raises
    ------
    InvalidArgumentError
        If a number is out of range, a name is missing or unknown, or an array has another shape or dtype.
    """

    config: ModelConfig
    step: int
    batches: int
    batch_size: int
    seq_len: int
    params: dict[str, NDArray[np.float32]]
    m: dict[str, NDArray[np.float32]]
    v: dict[str, NDArray[np.float32]]
    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    run: int = 0
    seed: int = 0
    data_id: int = 0
    blas: int = 0

    def __post_init__(self) -> None:
        """Check the numbers' ranges and bring the arrays into the file's order."""
        for name, least, end in _STATE_RANGES:
            value = getattr(self, name)
            if not least <= value < end:
                raise InvalidArgumentError(
                    f"training state, {name}: expected a number from {least} to {end - 1}, found {value}"
                )
        for name in _STATE_FLOATS:
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))
        for group in _STATE_GROUPS:
            object.__setattr__(self, group, _checked_tensors(self.config, getattr(self, group), group))


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return every parameter's shape by name, in the checkpoint's order, the layer dimension first."""
    layers, channels = config.num_layers, config.channels
    return {
        "wte": (config.padded_vocab_size, channels),
        "wpe": (config.max_seq_len, channels),
        "ln1w": (layers, channels),
        "ln1b": (layers, channels),
        "qkvw": (layers, 3 * channels, channels),
        "qkvb": (layers, 3 * channels),
        "attprojw": (layers, channels, channels),
        "attprojb": (layers, channels),
        "ln2w": (layers, channels),
        "ln2b": (layers, channels),
        "fcw": (layers, 4 * channels, channels),
        "fcb": (layers, 4 * channels),
        "fcprojw": (layers, channels, 4 * channels),
        "fcprojb": (layers, channels),
        "lnfw": (channels,),
        "lnfb": (channels,),
    }


def num_parameters(config: ModelConfig) -> int:
    """Return the number of elements of all parameters together."""
    return sum(_elements(shape) for shape in parameter_shapes(config).values())


# ---- Model checkpoint ----


def checkpoint_config(path: StrPath) -> ModelConfig:
    """Read a checkpoint's sizes and check that the file has exactly the bytes that go with them.

    Raises
    ------
    FormatError
        If the header or the file's size isn't that of a float32 checkpoint.
    FileError
        If the file can't be read.
    """
    with _reading(path) as (file, where):
        return _read_checkpoint_header(file, where)


def read_checkpoint(path: StrPath, *, mmap: bool = False) -> Checkpoint:
    """Read a model checkpoint.

    Parameters
    ----------
    path
        The file.
    mmap
        True: the arrays are read-only views of the mapped file, read when touched. False: they are in memory.

    Raises
    ------
    FormatError
        If the header or the file's size isn't that of a float32 checkpoint.
    FileError
        If the file can't be read.
    OutOfMemoryError
        If there is no memory for the parameters.
    """
    with _reading(path) as (file, where):
        config = _read_checkpoint_header(file, where)
        return Checkpoint(config, _read_tensors(file, where, config, HEADER_BYTES, mmap=mmap))


def checkpoint_header(config: ModelConfig) -> bytes:
    """Return the 1024 bytes that a checkpoint of this config starts with."""
    return _header(CHECKPOINT_MAGIC, CHECKPOINT_VERSION, *astuple(config))


def write_checkpoint(path: StrPath, checkpoint: Checkpoint) -> None:
    """Write a model checkpoint; on failure the file that was there before is still there, whole.

    Raises
    ------
    FileError
        If the file can't be written.
    """
    with atomic_write(path) as file:
        file.write(checkpoint_header(checkpoint.config))
        for array in checkpoint.parameters.values():
            file.write(_bytes_of(array, _FLOAT32))


def _read_checkpoint_header(file: BinaryIO, where: Path) -> ModelConfig:
    header = _read_header(file, where, CHECKPOINT_MAGIC)
    if header[1] == CHECKPOINT_VERSION_BFLOAT16:
        raise _refusal(
            where, 4, f"version {CHECKPOINT_VERSION} (float32)", "version 5 (bfloat16), which isn't supported"
        )
    if header[1] != CHECKPOINT_VERSION:
        raise _refusal(where, 4, f"version {CHECKPOINT_VERSION} (float32)", f"version {header[1]}")
    names = [field.name for field in fields(ModelConfig)]
    sizes = dict(zip(names, header[2:], strict=False))
    problem = _config_problem(sizes)
    if problem is not None:
        name, expected, found = problem
        raise _refusal(where, 8 + 4 * names.index(name), f"{name} to be {expected}", found)
    config = ModelConfig(**sizes)
    _check_size(file, where, _tensor_sections(config))
    return config


# ---- Debug state ----


def read_debug_state(path: StrPath, config: ModelConfig, *, mmap: bool = False) -> DebugState:
    """Read llm.c's debug state.

    Parameters
    ----------
    path
        The file.
    config
        Sizes of the model that it belongs to; the file only has B and T.
    mmap
        True: logits and gradients are read-only views of the mapped file. False: they are in memory.

    Raises
    ------
    FormatError
        If the header or the file's size isn't that of this model's debug state.
    TokenRangeError
        If a token id isn't in [0, V).
    FileError
        If the file can't be read.
    OutOfMemoryError
        If there is no memory for the arrays.
    """
    with _reading(path) as (file, where):
        header = _read_header(file, where, DEBUG_STATE_MAGIC)
        _check_version(header, where, (DEBUG_STATE_VERSION,))
        batch_size, seq_len = header[2:4]
        if batch_size < 1:
            raise _refusal(where, 8, "a positive batch size", str(batch_size))
        if not 1 <= seq_len <= config.max_seq_len:
            raise _refusal(where, 12, f"a sequence length from 1 to {config.max_seq_len}", str(seq_len))
        positions = batch_size * seq_len
        sections = [
            ("x", 4 * positions),
            ("y", 4 * positions),
            ("logits", 4 * positions * config.vocab_size),
            ("loss", 4),
            *_tensor_sections(config),
        ]
        _check_size(file, where, sections)
        ids = _read_array(file, where, _INT32, HEADER_BYTES, 2 * positions, mmap=False)
        _check_ids(where, ids, HEADER_BYTES, config.vocab_size)
        end = HEADER_BYTES + ids.nbytes
        logits = _read_array(file, where, _FLOAT32, end, positions * config.vocab_size, mmap=mmap)
        end += logits.nbytes
        loss = _read_array(file, where, _FLOAT32, end, 1, mmap=False)
        end += loss.nbytes
        gradients = _read_tensors(file, where, config, end, mmap=mmap)
        inputs, targets = ids.reshape(2, batch_size, seq_len)
        logits = logits.reshape(batch_size, seq_len, config.vocab_size)
        return DebugState(config, inputs, targets, logits, float(loss[0]), gradients)


def write_debug_state(path: StrPath, state: DebugState) -> None:
    """Write a debug state; on failure the file that was there before is still there, whole.

    Raises
    ------
    FileError
        If the file can't be written.
    """
    batch_size, seq_len = state.inputs.shape
    with atomic_write(path) as file:
        file.write(_header(DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, batch_size, seq_len))
        file.write(_bytes_of(state.inputs, _INT32))
        file.write(_bytes_of(state.targets, _INT32))
        file.write(_bytes_of(state.logits, _FLOAT32))
        file.write(_bytes_of(np.array([state.loss], _FLOAT32), _FLOAT32))
        for array in state.gradients.values():
            file.write(_bytes_of(array, _FLOAT32))


# ---- Tokenizer ----


def read_tokenizer(path: StrPath) -> Tokenizer:
    """Read a tokenizer of version 1 or 2.

    Raises
    ------
    FormatError
        If header, a token's length or the file's size is wrong.
    FileError
        If the file can't be read.
    """
    with _reading(path) as (file, where):
        header = _read_header(file, where, TOKENIZER_MAGIC)
        version = _check_version(header, where, TOKENIZER_VERSIONS)
        count = header[2]
        if count < 1:
            raise _refusal(where, 8, "a positive number of tokens", str(count))
        if version == 1 and count != GPT2_END_OF_TEXT + 1:
            raise _refusal(where, 8, f"{GPT2_END_OF_TEXT + 1} tokens in a version 1 tokenizer", str(count))
        end_of_text = header[3] if version == 2 else GPT2_END_OF_TEXT
        if not 0 <= end_of_text < count:
            raise _refusal(where, 12, f"an end-of-text id in [0, {count})", str(end_of_text))
        body = file.read(min(_size(file), count * (1 + _MAX_TOKEN_BYTES)))
        tokens = []
        position = 0
        for index in range(count):
            offset = HEADER_BYTES + position
            if position == len(body):
                raise _refusal(where, offset, f"token {index} of {count}", "the end of the file")
            length = body[position]
            if length == 0:
                raise _refusal(where, offset, f"token {index} to have 1 to {_MAX_TOKEN_BYTES} bytes", "0")
            token = body[position + 1 : position + 1 + length]
            if len(token) < length:
                raise _refusal(
                    where,
                    HEADER_BYTES + len(body),
                    f"token {index} of {count} to have {length} bytes",
                    f"the end of the file after {len(token)}",
                )
            tokens.append(token)
            position += 1 + length
        _check_end(file, where, HEADER_BYTES + position)
        return Tokenizer(tuple(tokens), end_of_text, version)


def write_tokenizer(path: StrPath, tokenizer: Tokenizer) -> None:
    """Write a tokenizer in its own version; on failure the file that was there before is still there, whole.

    Raises
    ------
    FileError
        If the file can't be written.
    """
    extra = (tokenizer.end_of_text,) if tokenizer.version == 2 else ()
    with atomic_write(path) as file:
        file.write(_header(TOKENIZER_MAGIC, tokenizer.version, tokenizer.vocab_size, *extra))
        file.write(b"".join(bytes([len(token)]) + token for token in tokenizer.tokens))


# ---- Tokens ----


def token_count(path: StrPath) -> int:
    """Read a token file's header and return its number of tokens, having checked the file's size against it.

    Raises
    ------
    FormatError
        If the header or the file's size isn't that of a token file.
    FileError
        If the file can't be read.
    """
    with _reading(path) as (file, where):
        return _read_tokens_header(file, where)


def read_tokens(path: StrPath, *, mmap: bool = True, vocab_size: int | None = None) -> NDArray[np.uint16]:
    """Read a token file.

    Parameters
    ----------
    path
        The file.
    mmap
        True: the array is a read-only view of the mapped file. False: it is in memory.
    vocab_size
        V; None: ids aren't checked.

    Returns
    -------
    NDArray[np.uint16]
        The token ids, one-dimensional.

    Raises
    ------
    FormatError
        If the header or the file's size isn't that of a token file.
    TokenRangeError
        If an id isn't below V.
    FileError
        If the file can't be read.
    OutOfMemoryError
        If there is no memory for the ids.
    """
    with _reading(path) as (file, where):
        count = _read_tokens_header(file, where)
        ids = _read_array(file, where, _UINT16, HEADER_BYTES, count, mmap=mmap)
        if vocab_size is not None:
            _check_ids(where, ids, HEADER_BYTES, vocab_size)
        return ids


def write_tokens(path: StrPath, tokens: ArrayLike) -> None:
    """Write a token file; on failure the file that was there before is still there, whole.

    Parameters
    ----------
    path
        The file.
    tokens
        Integer ids from 0 to 65535, one-dimensional, fewer than 2^31.

    Raises
    ------
    InvalidArgumentError
        If `tokens` isn't a sequence of integers or is too long for the header's count.
    TokenRangeError
        If an id doesn't fit into 16 bits.
    FileError
        If the file can't be written.
    """
    ids = np.asarray(tokens)
    if ids.size == 0:
        ids = ids.astype(_UINT16)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{Path(path)}: expected a one-dimensional array of integer token ids, "
            f"found {ids.ndim} dimensions of {ids.dtype}"
        )
    if ids.size > _INT32_MAX:
        raise InvalidArgumentError(f"{Path(path)}: expected at most {_INT32_MAX} tokens, found {ids.size}")
    index = _first_outside(ids, MAX_TOKEN_ID + 1)
    if index is not None:
        raise TokenRangeError(
            f"{Path(path)}, token {index}: expected an id from 0 to {MAX_TOKEN_ID}, found {ids[index]}"
        )
    with atomic_write(path) as file:
        file.write(_header(TOKENS_MAGIC, TOKENS_VERSION, ids.size))
        for start in range(0, ids.size, _SCAN):
            file.write(_bytes_of(ids[start : start + _SCAN], _UINT16))


def _read_tokens_header(file: BinaryIO, where: Path) -> int:
    header = _read_header(file, where, TOKENS_MAGIC)
    _check_version(header, where, (TOKENS_VERSION,))
    count = header[2]
    if count < 0:
        raise _refusal(where, 8, "a number of tokens that isn't negative", str(count))
    _check_size(file, where, [("the token ids", 2 * count)])
    return count


# ---- Training states ----

_STATE_BLOCK: Final = 4096
_STATE_GROUPS: Final = ("params", "m", "v")
_STATE_FLOATS: Final = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
_STATE_RANGES: Final = (
    ("step", 0, 2**63),
    ("batches", 0, 2**63),
    ("batch_size", 1, 2**63),
    ("seq_len", 1, 2**63),
    ("run", 0, 2**64),
    ("seed", -(2**63), 2**63),
    ("data_id", 0, 2**64),
    ("blas", 0, 2),
)
_STATE_SHARED: Final = ("step", "run", "batches", "batch_size", "seq_len", "seed", "data_id", *_STATE_FLOATS, "blas")
_CONFIG_NAMES: Final = (
    "max_seq_len",
    "vocab_size",
    "num_layers",
    "num_heads",
    "channels",
    "padded_vocab_size",
)
_STATE_NAMES: Final[tuple[str, ...]] = (
    "magic",
    "version",
    *_CONFIG_NAMES,
    "rank",
    "num_ranks",
    "tensors",
    *_STATE_SHARED,
)
_STATE_OFFSETS: Final[tuple[int, ...]] = (*range(0, 44, 4), *range(48, 104, 8), *range(104, 128, 4))
_STATE_HEADER: Final = np.dtype(
    {
        "names": _STATE_NAMES,
        "formats": ["<i4"] * 11 + ["<i8", "<u8", "<i8", "<i8", "<i8", "<i8", "<u8"] + ["<f4"] * 5 + ["<i4"],
        "offsets": _STATE_OFFSETS,
        "itemsize": HEADER_BYTES,
    }
)
_STATE_ENTRY: Final = np.dtype(
    [("parameter", "<i4"), ("layer", "<i4"), ("elements", "<i8"), ("positions", "<i8", (len(_STATE_GROUPS),))]
)
_STATE_END: Final = np.dtype(
    {
        "names": ["magic", "version", "step", "run", "rank", "num_ranks", "fingerprint", "size"],
        "formats": ["<i4", "<i4", "<i8", "<u8", "<i4", "<i4", "<u8", "<i8"],
        "offsets": [0, 4, 8, 16, 24, 28, 32, 40],
        "itemsize": _STATE_BLOCK,
    }
)
_STATE_FOLDER: Final = re.compile(r"step-(\d{12}|[1-9]\d{12,18})", re.ASCII)
_STATE_FILE: Final = re.compile(r"rank-(\d{5}|[1-9]\d{5,9})-of-(\d{5}|[1-9]\d{5,9})\.state", re.ASCII)

_Entry: TypeAlias = tuple[str, int]
"""Name and layer of one tensor in a training state's file."""


def read_training_state(path: StrPath) -> TrainingState:
    """Read a training state, whichever number of ranks wrote it.

    Parameters
    ----------
    path
        The folder of one state, or the one above it: then the newest complete state is read.

    Raises
    ------
    FormatError
        If there is no complete state, or a file's content isn't what the format says.
    FileError
        If a file can't be read.
    OutOfMemoryError
        If there is no memory for the tensors.
    """
    where = Path(path)
    names = _names_in(where)
    steps = sorted((int(match[1]) for name in names if (match := _STATE_FOLDER.fullmatch(name))), reverse=True)
    own = _STATE_FOLDER.fullmatch(where.name)
    if any(map(_STATE_FILE.fullmatch, names)) or (own and not steps):
        return _read_state(where, int(own[1]) if own else None)
    newest: FormatError | None = None
    for step in steps:
        try:
            return _read_state(where / f"step-{step:012}", step)
        except FormatError as error:
            newest = newest or error
    raise FormatError(
        f"{where}: expected a complete training state, found "
        + (f"none (the newest: {newest})" if newest else "no folder named like step-000000000000")
    ) from newest


def write_training_state(root: StrPath, state: TrainingState, *, num_ranks: int = 1) -> Path:
    """Write a training state and return its folder; rank r of R gets every R-th tensor, from the r-th on.

    Parameters
    ----------
    root
        The folder that holds the states; it and the state's own are made as needed.
    state
        The state.
    num_ranks
        R, the number of files.

    Raises
    ------
    InvalidArgumentError
        If `num_ranks` isn't positive.
    FileError
        If a file can't be written; a complete state needs all of them.
    """
    if not 1 <= num_ranks <= _INT32_MAX:
        raise InvalidArgumentError(f"num_ranks: expected a number from 1 to {_INT32_MAX}, found {num_ranks}")
    folder = Path(root) / f"step-{state.step:012}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sync_directory(folder.parent)
    except OSError as error:
        raise FileError(f"{folder}: can't be made: {_reason(error)}", error.errno, str(folder)) from error
    layers = {name: state.config.num_layers if _layered(name) else 1 for name in parameter_shapes(state.config)}
    entries = [(name, layer) for name, count in layers.items() for layer in range(count)]
    for rank in range(num_ranks):
        with atomic_write(folder / _state_file_name(rank, num_ranks)) as file:
            for piece in _state_pieces(state, rank, num_ranks, entries[rank::num_ranks]):
                file.write(piece)
    return folder


def _state_file_name(rank: int, num_ranks: int) -> str:
    return f"rank-{rank:05}-of-{num_ranks:05}.state"


def _state_offset(name: str) -> int:
    return _STATE_OFFSETS[_STATE_NAMES.index(name)]


def _layered(name: str) -> bool:
    return name not in ("wte", "wpe", "lnfw", "lnfb")


def _layer_shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    shape = parameter_shapes(config)[name]
    return shape[1:] if _layered(name) else shape


def _of_layer(array: NDArray[np.float32], name: str, layer: int) -> NDArray[np.float32]:
    """Return a view of one layer's tensor."""
    return array[layer] if _layered(name) else array


def _blocks(size: int) -> int:
    return -(-size // _STATE_BLOCK) * _STATE_BLOCK


def _fingerprint(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def _state_layout(config: ModelConfig, entries: list[_Entry]) -> tuple[NDArray[np.void], int, int]:
    """Return the table, where the values begin and where they end."""
    numbers = {name: number for number, name in enumerate(parameter_shapes(config))}
    table = np.zeros(len(entries), _STATE_ENTRY)
    begin = end = _blocks(HEADER_BYTES + table.nbytes)
    for row, (name, layer) in zip(table, entries, strict=True):
        elements = _elements(_layer_shape(config, name))
        room = _blocks(4 * elements)
        positions = [end + room * part for part in range(len(_STATE_GROUPS))]
        row["parameter"], row["layer"], row["elements"], row["positions"] = numbers[name], layer, elements, positions
        end += room * len(_STATE_GROUPS)
    return table, begin, end


def _state_end(header: np.void, size: int, start: bytes) -> bytes:
    end = np.zeros(1, _STATE_END)
    for name in ("magic", "version", "step", "run", "rank", "num_ranks"):
        end[name] = header[name]
    end["fingerprint"] = _fingerprint(start)
    end["size"] = size
    return end.tobytes()


def _state_pieces(state: TrainingState, rank: int, num_ranks: int, entries: list[_Entry]) -> Iterator[bytes]:
    table, begin, end = _state_layout(state.config, entries)
    header = np.zeros(1, _STATE_HEADER)
    header["magic"], header["version"] = TRAINING_STATE_MAGIC, TRAINING_STATE_VERSION
    header["rank"], header["num_ranks"], header["tensors"] = rank, num_ranks, len(entries)
    for name in _CONFIG_NAMES:
        header[name] = getattr(state.config, name)
    for name in _STATE_SHARED:
        header[name] = getattr(state, name)
    start = (header.tobytes() + table.tobytes()).ljust(begin, b"\0")
    yield start
    for name, layer in entries:
        for group in _STATE_GROUPS:
            data = bytes(_bytes_of(_of_layer(getattr(state, group)[name], name, layer), _FLOAT32))
            yield data.ljust(_blocks(len(data)), b"\0")
    yield _state_end(header[0], end + _STATE_BLOCK, start)


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise FileError(f"{folder}: can't be listed: {_reason(error)}", error.errno, str(folder)) from error


def _ranks_of_state(folder: Path) -> int:
    """Return the number of ranks whose files are all there."""
    found: dict[int, set[int]] = {}
    for name in _names_in(folder):
        if match := _STATE_FILE.fullmatch(name):
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    complete = [ranks for ranks, files in sorted(found.items()) if files == set(range(ranks))]
    if len(complete) == 1:
        return complete[0]
    if complete:
        raise FormatError(
            f"{folder}: expected the files of one save, found those of "
            + " and of ".join(map(str, complete))
            + " ranks"
        )
    files = ", ".join(f"{len(files)} of {ranks}" for ranks, files in sorted(found.items()))
    raise FormatError(f"{folder}: expected the files of all ranks, found {files or 'none'}")


def _read_state(folder: Path, step: int | None) -> TrainingState:
    """Read the state in a folder; `step` is that of its name."""
    num_ranks = _ranks_of_state(folder)
    tensors: dict[str, dict[str, NDArray[np.float32]]] = {}
    owners: dict[_Entry, int] = {}
    first: np.void | None = None
    for rank in range(num_ranks):
        with _reading(folder / _state_file_name(rank, num_ranks)) as (file, where):
            header = _read_state_header(file, where)
            expected = {"rank": rank, "num_ranks": num_ranks}
            if step is not None:
                expected["step"] = step
            if first is not None:
                expected |= {name: first[name] for name in (*_CONFIG_NAMES, *_STATE_SHARED)}
            for name, value in expected.items():
                # As bits: two NaNs are the same here.
                if header[name].tobytes() != np.array(value, header[name].dtype).tobytes():
                    raise _refusal(where, _state_offset(name), f"{name} {value}", str(header[name]))
            config = ModelConfig(**{name: int(header[name]) for name in _CONFIG_NAMES})
            entries = _read_state_table(file, where, config, header)
            if first is None:
                first = header
                for group in _STATE_GROUPS:
                    tensors[group] = {
                        name: np.empty(shape, np.float32) for name, shape in parameter_shapes(config).items()
                    }
            for (name, layer), positions in entries:
                if owners.setdefault((name, layer), rank) != rank:
                    raise FormatError(
                        f"{where}: expected each tensor once, found {name}[{layer}] as in rank {owners[name, layer]}'s"
                    )
                for group, position in zip(_STATE_GROUPS, positions, strict=True):
                    target = _of_layer(tensors[group][name], name, layer)
                    values = _read_array(file, where, _FLOAT32, position, target.size, mmap=False)
                    target[...] = values.reshape(target.shape)
    assert first is not None  # there is at least one rank
    expected_tensors = sum(config.num_layers if _layered(name) else 1 for name in parameter_shapes(config))
    if len(owners) != expected_tensors:
        raise FormatError(f"{folder}: expected the model's {expected_tensors} tensors, found {len(owners)}")
    numbers: dict[str, Any] = {name: first[name].item() for name in _STATE_SHARED}
    return TrainingState(config, params=tensors["params"], m=tensors["m"], v=tensors["v"], **numbers)


def _read_state_header(file: BinaryIO, where: Path) -> np.void:
    ints = _read_header(file, where, TRAINING_STATE_MAGIC)
    _check_version(ints, where, (TRAINING_STATE_VERSION,))
    header: np.void = np.array(ints, _INT32).view(_STATE_HEADER)[0]
    sizes = {name: int(header[name]) for name in _CONFIG_NAMES}
    problem = _config_problem(sizes)
    if problem is not None:
        name, expected, found = problem
        raise _refusal(where, 8 + 4 * _CONFIG_NAMES.index(name), f"{name} to be {expected}", found)
    for name, least, _ in (*_STATE_RANGES, ("tensors", 0, 0)):
        if header[name] < least:
            raise _refusal(where, _state_offset(name), f"{name} to be at least {least}", str(header[name]))
    return header


def _read_state_table(
    file: BinaryIO, where: Path, config: ModelConfig, header: np.void
) -> list[tuple[_Entry, list[int]]]:
    """Check the file's table, size and end, and return its tensors with the positions of their parts."""
    size = _size(file)
    count = int(header["tensors"])
    begin = _blocks(HEADER_BYTES + count * _STATE_ENTRY.itemsize)
    if size < begin + _STATE_BLOCK:
        raise _refusal(where, size, f"at least {begin + _STATE_BLOCK} bytes", "the end of the file")
    file.seek(0)
    start = file.read(begin)
    table = np.frombuffer(start, _STATE_ENTRY, count, HEADER_BYTES)
    names = list(parameter_shapes(config))
    entries: dict[_Entry, list[int]] = {}
    for index, row in enumerate(table):
        position = HEADER_BYTES + index * _STATE_ENTRY.itemsize
        number, layer = int(row["parameter"]), int(row["layer"])
        if not 0 <= number < len(names):
            raise _refusal(where, position, f"a parameter from 0 to {len(names) - 1}", str(number))
        layers = config.num_layers if _layered(names[number]) else 1
        if not 0 <= layer < layers:
            raise _refusal(where, position + 4, f"a layer from 0 to {layers - 1}", str(layer))
        if (names[number], layer) in entries:
            raise _refusal(where, position, "each tensor once", f"{names[number]}[{layer}] again")
        entries[names[number], layer] = [int(value) for value in row["positions"]]
    expected, _, end = _state_layout(config, list(entries))
    for index in range(count):
        if table[index] != expected[index]:
            position = HEADER_BYTES + index * _STATE_ENTRY.itemsize
            raise _refusal(where, position, f"the entry {expected[index]}", str(table[index]))
    if size < end + _STATE_BLOCK:
        raise _refusal(where, size, f"{end + _STATE_BLOCK} bytes in all", "the end of the file")
    _check_end(file, where, end + _STATE_BLOCK)
    file.seek(end)
    if file.read(_STATE_BLOCK) != _state_end(header, size, start):
        raise _refusal(where, end, "an end that goes with the header", "another: one of the two is damaged")
    return list(entries.items())


# ---- Writing ----


@contextmanager
def atomic_write(path: StrPath) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete and on disk.

    It is written under a temporary name in the same directory, synchronised, then renamed, and the directory
    is synchronised. If anything fails, an exception of the caller included, the temporary file is removed and
    what was under the name before stays. A symbolic link is followed, and an existing file's permissions are
    kept.

    Raises
    ------
    FileError
        If the operating system refuses, or the name belongs to something that isn't a regular file.
    """
    shown = Path(path)
    temporary: Path | None = None
    try:
        target = shown.resolve()
        mode = _mode_of(target)
        candidate = target.with_name(f".starpullm-{secrets.token_hex(8)}.tmp")
        with candidate.open("xb") as file:
            temporary = candidate
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        temporary = None
        _sync_directory(target.parent)
    except StarpullmError:
        raise
    except OSError as error:
        raise FileError(f"{shown}: can't be written: {_reason(error)}", error.errno, str(shown)) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def _mode_of(target: Path) -> int | None:
    """Return the permissions of the file that will be replaced, or None if there is none yet."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileError(f"{target}: can't be written: expected a regular file", errno.EINVAL, str(target))
    return stat.S_IMODE(mode)


def _sync_directory(directory: Path) -> None:
    # The new file is whole and under its name by now. Where the directory can't be opened for reading or its
    # file system can't synchronise directories, that has to be enough.
    with suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def _header(*values: int) -> bytes:
    header = np.zeros(HEADER_INTS, _INT32)
    header[: len(values)] = values
    return header.tobytes()


def _bytes_of(array: NDArray[np.generic], dtype: np.dtype[np.generic]) -> memoryview:
    return np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data


# ---- Reading ----


@contextmanager
def _reading(path: StrPath) -> Iterator[tuple[BinaryIO, Path]]:
    where = Path(path)
    try:
        with where.open("rb") as file:
            yield file, where
    except StarpullmError:
        raise
    except OSError as error:
        raise FileError(f"{where}: can't be read: {_reason(error)}", error.errno, str(where)) from error
    except MemoryError as error:
        raise OutOfMemoryError(f"{where}: there is no memory for its content") from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _refusal(where: Path, position: int, expected: str, found: str) -> FormatError:
    return FormatError(f"{where}, byte {position}: expected {expected}, found {found}")


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read_header(file: BinaryIO, where: Path, magic: int) -> list[int]:
    data = file.read(HEADER_BYTES)
    if len(data) >= 4:
        found = int.from_bytes(data[:4], "little", signed=True)
        if found != magic:
            name = f" ({_KINDS[found]})" if found in _KINDS else ""
            raise _refusal(where, 0, f"magic {magic} ({_KINDS[magic]})", f"{found}{name}")
    if len(data) < HEADER_BYTES:
        raise _refusal(where, len(data), f"a {_KINDS[magic]} header of {HEADER_BYTES} bytes", "the end of the file")
    return [int(value) for value in np.frombuffer(data, _INT32)]


def _check_version(header: list[int], where: Path, versions: tuple[int, ...]) -> int:
    if header[1] not in versions:
        raise _refusal(where, 4, f"version {' or '.join(map(str, versions))}", f"version {header[1]}")
    return header[1]


def _check_size(file: BinaryIO, where: Path, sections: Iterable[tuple[str, int]]) -> None:
    """Check that the header and the sections (name, bytes) are all of the file."""
    size = _size(file)
    end = HEADER_BYTES
    inside = None
    for name, length in sections:
        end += length
        if inside is None and end > size:
            inside = name
    if inside is not None:
        raise _refusal(where, size, f"{end} bytes in all", f"the end of the file in {inside}")
    _check_end(file, where, end)


def _check_end(file: BinaryIO, where: Path, end: int) -> None:
    extra = _size(file) - end
    if extra != 0:
        raise _refusal(where, end, "the end of the file", f"{extra} more bytes")


def _read_array(
    file: BinaryIO, where: Path, dtype: np.dtype[_Scalar], position: int, count: int, *, mmap: bool
) -> NDArray[_Scalar]:
    if count == 0:
        return np.empty(0, dtype)
    if mmap:
        return np.asarray(np.memmap(file, dtype, mode="r", offset=position, shape=(count,)))
    file.seek(position)
    array = np.fromfile(file, dtype, count)
    if array.size < count:
        raise _refusal(where, position + array.nbytes, f"{count} values", "the end of the file")
    return array


def _read_tensors(
    file: BinaryIO, where: Path, config: ModelConfig, position: int, *, mmap: bool
) -> dict[str, NDArray[np.float32]]:
    """Read all parameters (or gradients) as views of one array, in the checkpoint's order."""
    body = _read_array(file, where, _FLOAT32, position, num_parameters(config), mmap=mmap)
    tensors = {}
    start = 0
    for name, shape in parameter_shapes(config).items():
        end = start + _elements(shape)
        tensors[name] = body[start:end].reshape(shape)
        start = end
    return tensors


# ---- Checks ----


def _config_problem(sizes: Mapping[str, int]) -> tuple[str, str, str] | None:
    """Return the first size that is wrong, as (name, what it should be, what it is), or None."""
    for name, value in sizes.items():
        if not 1 <= value <= _INT32_MAX:
            return name, f"from 1 to {_INT32_MAX}", str(value)
    vocab_size, padded_vocab_size = sizes["vocab_size"], sizes["padded_vocab_size"]
    layers, channels = sizes["num_layers"], sizes["channels"]
    if channels % sizes["num_heads"] != 0:
        return "channels", f"divisible by num_heads = {sizes['num_heads']}", str(channels)
    if padded_vocab_size < vocab_size:
        return "padded_vocab_size", f"at least vocab_size = {vocab_size}", str(padded_vocab_size)
    # Elements of parameter_shapes, without building a config that isn't known to be valid.
    tables = (padded_vocab_size + sizes["max_seq_len"]) * channels
    parameters = tables + layers * (12 * channels + 13) * channels + 2 * channels
    if HEADER_BYTES + 4 * parameters > _INT64_MAX:
        return (
            "channels",
            "such that the checkpoint's bytes fit into 64 bits",
            f"{channels} in {layers} layers",
        )
    return None


def _tensor_sections(config: ModelConfig) -> list[tuple[str, int]]:
    return [(name, 4 * _elements(shape)) for name, shape in parameter_shapes(config).items()]


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def _check_array(name: str, array: NDArray[np.generic], shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise InvalidArgumentError(f"{name}: expected {dtype} {shape}, found {array.dtype} {array.shape}")


def _checked_tensors(
    config: ModelConfig, tensors: Mapping[str, NDArray[np.float32]], group: str
) -> dict[str, NDArray[np.float32]]:
    shapes = parameter_shapes(config)
    missing = [name for name in shapes if name not in tensors]
    unknown = [name for name in tensors if name not in shapes]
    if missing or unknown:
        raise InvalidArgumentError(
            f"{group}: expected {', '.join(shapes)}, found "
            + " and ".join(
                f"{word} {', '.join(names)}" for word, names in (("no", missing), ("also", unknown)) if names
            )
        )
    for name, shape in shapes.items():
        _check_array(f"{group}, {name}", tensors[name], shape, _FLOAT32)
    return {name: tensors[name] for name in shapes}


def _first_outside(ids: NDArray[np.integer], limit: int) -> int | None:
    """Return the index (row-major) of the first id that isn't in [0, limit), or None."""
    flat = ids.reshape(-1)
    for start in range(0, flat.size, _SCAN):
        chunk = flat[start : start + _SCAN]
        if int(chunk.max()) >= limit or int(chunk.min()) < 0:
            return start + int(np.argmax((chunk >= limit) | (chunk < 0)))
    return None


def _check_ids(where: Path, ids: NDArray[np.integer], position: int, limit: int) -> None:
    index = _first_outside(ids, limit)
    if index is not None:
        raise TokenRangeError(
            f"{where}, byte {position + ids.itemsize * index}: expected a token id in [0, {limit}), found {ids[index]}"
        )
