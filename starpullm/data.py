"""Training data: token batches in llm.c's order, text to tokens, generated models and tokens, sampling.

The trainer, the command line and the parity checks call it; it needs no native library.

Size letters: B batch, T sequence length, C channels, L layers, V vocabulary, Vp padded vocabulary.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import itertools
import math
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    MissingDependencyError,
    TokenRangeError,
)
from starpullm.formats import (
    ModelConfig,
    StrPath,
    atomic_write,
    checkpoint_header,
    parameter_shapes,
    read_tokenizer,
    read_tokens,
)

__all__ = [
    "TextEncoding",
    "TokenLoader",
    "XorShift",
    "byte_encoding",
    "generate_checkpoint",
    "generate_parameters",
    "generate_tokens",
    "generated_checkpoint_sha256",
    "generated_tokens_sha256",
    "gpt2_encoding",
    "initial_parameters",
    "mix",
    "sample",
    "text_encoding",
    "token_files",
]


# ---- Token batches ----


def token_files(paths: StrPath | Iterable[StrPath]) -> tuple[Path, ...]:
    """Return the token files that paths or glob patterns name, each once, sorted by name byte by byte.

    Parameters
    ----------
    paths
        One path or pattern, or several. What exists under its literal name is taken as a path. As in llm.c, a
        pattern's wildcard doesn't match a leading dot of a file's name.

    Raises
    ------
    FileError
        If a path or pattern names no file.
    InvalidArgumentError
        If a pattern can't be understood, or there is no path at all.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several:
        raise InvalidArgumentError("token files: expected at least one path or pattern, found none")
    found: set[Path] = set()
    for pattern in several:
        matches = _matches(Path(pattern))
        if not matches:
            raise FileError(f"{pattern}: no token file has this name or matches this pattern", errno.ENOENT)
        found.update(matches)
    return tuple(sorted(found, key=os.fsencode))


def _matches(pattern: Path) -> list[Path]:
    if pattern.exists():
        return [pattern]
    try:
        hits = list(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError as error:
        raise InvalidArgumentError(f"{pattern}: not a pattern: {error}") from None
    dotted = pattern.name.startswith(".")
    return [hit for hit in hits if hit.is_file() and hit.name.startswith(".") == dotted]


class TokenLoader:
    """Batches of token files in llm.c's order, without shuffling.

    Step k of a shard reads B·T + 1 tokens from position k·R·B·T + r·B·T for rank r of R; the targets are the
    inputs moved by one; the shard's tail is dropped; the next shard follows, and after the last the first
    again. So R ranks of B sequences read the same global batch as one rank of R·B.

    Parameters
    ----------
    paths
        Token files or glob patterns, see `token_files`.
    batch_size, seq_len
        B and T.
    rank, num_ranks
        r and R.
    vocab_size
        V; every id of every file is checked against it. None: ids aren't checked.

    Raises
    ------
    InvalidArgumentError
        If a size isn't positive, the rank isn't below the number of ranks, or a shard is too small for one
        step.
    TokenRangeError
        If an id isn't below V.
    FormatError, FileError
        If a file isn't a token file or can't be read.
    """

    def __init__(
        self,
        paths: StrPath | Iterable[StrPath],
        batch_size: int,
        seq_len: int,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        vocab_size: int | None = None,
    ) -> None:
        _check_positive(batch_size=batch_size, seq_len=seq_len, num_ranks=num_ranks)
        if not 0 <= rank < num_ranks:
            raise InvalidArgumentError(f"rank: expected a number in [0, {num_ranks}), found {rank}")
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.rank = rank
        self.num_ranks = num_ranks
        self.paths = token_files(paths)
        self._position = 0
        self._counts = [read_tokens(path, vocab_size=vocab_size).size for path in self.paths]
        per_step = num_ranks * batch_size * seq_len
        for path, count in zip(self.paths, self._counts, strict=True):
            if count < per_step + 1:
                raise InvalidArgumentError(
                    f"{path}: expected at least {per_step + 1} tokens for one step of {num_ranks} ranks x "
                    f"{batch_size} sequences x {seq_len} tokens, found {count}"
                )
        steps = [(count - 1) // per_step for count in self._counts]
        self._first_steps = [0, *itertools.accumulate(steps)]
        self._open: tuple[int, NDArray[np.uint16]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps until the first shard comes again."""
        return self._first_steps[-1]

    @property
    def fingerprint(self) -> int:
        """64 bits that say which data these are: the shards' names without folders, and their numbers of tokens."""
        shards = [(path.name, count) for path, count in zip(self.paths, self._counts, strict=True)]
        return int.from_bytes(hashlib.sha256(repr(shards).encode()).digest()[:8], "little")

    @property
    def position(self) -> int:
        """Steps read so far; counts on after the last shard."""
        return self._position

    def seek(self, position: int) -> None:
        """Let the next step be number `position`, counted from 0 as `position` does.

        Raises
        ------
        InvalidArgumentError
            If it is negative.
        """
        if position < 0:
            raise InvalidArgumentError(f"position: expected a number of steps from 0 on, found {position}")
        self._position = position

    def reset(self) -> None:
        """Start again from the first step of the first shard."""
        self.seek(0)

    def next(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the next step's inputs and targets, int32 (B,T) each.

        Raises
        ------
        FormatError, FileError
            If the file was changed or removed since the loader was made.
        """
        step = self._position % self.steps_per_epoch
        shard = bisect_right(self._first_steps, step) - 1
        ids = self._shard(shard)
        tokens = self.batch_size * self.seq_len
        start = ((step - self._first_steps[shard]) * self.num_ranks + self.rank) * tokens
        shape = (self.batch_size, self.seq_len)
        inputs = ids[start : start + tokens].astype(np.int32).reshape(shape)
        targets = ids[start + 1 : start + tokens + 1].astype(np.int32).reshape(shape)
        self._position += 1
        return inputs, targets

    def _shard(self, index: int) -> NDArray[np.uint16]:
        # One mapped file at a time: each holds a file descriptor, and data sets have thousands of shards.
        if self._open is None or self._open[0] != index:
            ids = read_tokens(self.paths[index])
            if ids.size != self._counts[index]:
                raise FormatError(
                    f"{self.paths[index]}: expected {self._counts[index]} tokens as when first opened, found {ids.size}"
                )
            self._open = index, ids
        return self._open[1]


# ---- Text to tokens ----


class TextEncoding(Protocol):
    """A way between text and token ids."""

    @property
    def name(self) -> str:
        """`gpt2` or `bytes`."""

    @property
    def vocab_size(self) -> int:
        """V, the number of token ids."""

    @property
    def end_of_text(self) -> int:
        """Id that separates documents; text never encodes to it."""

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the text's token ids, one-dimensional."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that aren't UTF-8 become U+FFFD.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """


END_OF_TEXT: Final = "<|endoftext|>"
"""How the end-of-text token looks when it is decoded."""

# The pattern that GPT-2 was published with: it cuts text into the pieces inside which bytes are merged.
_GPT2_SPLIT: Final = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

# The file names of GPT-2's vocabulary (merges, encoder) in tiktoken's cache, and their SHA-256. Nothing is downloaded.
_GPT2_VOCABULARY: Final = {
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee": ("1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6": ("196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
}


def text_encoding(tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return GPT-2's byte pair encoding if its vocabulary is on this machine, else bytes; `name` says which.

    Parameters
    ----------
    tokenizer_file
        llm.c's `gpt2_tokenizer.bin`. If it is given it is used, and what is wrong with it is raised.

    Raises
    ------
    FormatError, FileError, MissingDependencyError
        If `tokenizer_file` was given and can't be used.
    """
    if tokenizer_file is not None:
        return gpt2_encoding(tokenizer_file)
    try:
        return gpt2_encoding()
    except (FileError, MissingDependencyError):
        return byte_encoding()


def byte_encoding() -> TextEncoding:
    """Return the encoding with one token per byte of UTF-8 and 256 for end of text, V = 257."""
    return _ByteEncoding()


def gpt2_encoding(tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return GPT-2's byte pair encoding, done by tiktoken; nothing is ever downloaded.

    Parameters
    ----------
    tokenizer_file
        llm.c's `gpt2_tokenizer.bin`. None: the vocabulary that tiktoken has in its cache on disk.

    Raises
    ------
    MissingDependencyError
        If tiktoken isn't installed.
    FileError
        If the file can't be read, or no file was given and tiktoken's cache hasn't got the vocabulary.
    FormatError
        If the file isn't a tokenizer, or its tokens aren't a byte pair vocabulary.
    """
    tiktoken = _optional_module("tiktoken")
    if tokenizer_file is None:
        ranks = _cached_gpt2_ranks()
        end_of_text = len(ranks)
    else:
        ranks, end_of_text = _ranks_of_file(Path(tokenizer_file))
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=_GPT2_SPLIT,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: end_of_text},
    )
    return _BytePairEncoding(encoding, len(ranks) + 1, end_of_text)


class _ByteEncoding:
    name = "bytes"
    vocab_size = 257
    end_of_text = 256

    def encode(self, text: str) -> NDArray[np.int32]:
        # A lone surrogate has no UTF-8; tiktoken replaces it too.
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        marker = END_OF_TEXT.encode()
        checked = _checked_ids(ids, self.vocab_size)
        parts = (marker if token == self.end_of_text else bytes([token]) for token in checked)
        return b"".join(parts).decode("utf-8", errors="replace")


class _Tiktoken(Protocol):
    """The part of tiktoken.Encoding that is used here."""

    def encode_ordinary(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class _BytePairEncoding:
    name = "gpt2"

    def __init__(self, encoding: _Tiktoken, vocab_size: int, end_of_text: int) -> None:
        self._encoding = encoding
        self.vocab_size = vocab_size
        self.end_of_text = end_of_text

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.array(self._encoding.encode_ordinary(text), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode(_checked_ids(ids, self.vocab_size))


def _checked_ids(ids: Iterable[int], vocab_size: int) -> list[int]:
    checked = [int(token) for token in ids]
    for position, token in enumerate(checked):
        if not 0 <= token < vocab_size:
            raise TokenRangeError(f"token ids, element {position}: expected an id in [0, {vocab_size}), found {token}")
    return checked


def _optional_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"GPT-2's byte pair encoding needs the package tiktoken, which can't be imported: {error}"
        ) from error


def _ranks_of_file(path: Path) -> tuple[dict[bytes, int], int]:
    """Return token bytes to merge rank, which in GPT-2 is the token's id, and the end-of-text id."""
    tokenizer = read_tokenizer(path)
    ranks: dict[bytes, int] = {}
    for index, token in enumerate(tokenizer.tokens):
        if index == tokenizer.end_of_text:
            continue
        if token in ranks:
            raise FormatError(
                f"{path}: expected the distinct tokens of a byte pair vocabulary, "
                f"found token {index} with the bytes of token {ranks[token]}"
            )
        ranks[token] = index
    for byte in range(256):
        if bytes([byte]) not in ranks:
            raise FormatError(
                f"{path}: expected a byte pair vocabulary with every single byte, found none for {byte:#04x}"
            )
    return ranks, tokenizer.end_of_text


def _cached_gpt2_ranks() -> dict[bytes, int]:
    # tiktoken downloads what its cache lacks or has with another hash, so both are looked at first.
    directory = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if directory is None:
        directory = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    if not directory or not all(_has_hash(Path(directory), *entry) for entry in _GPT2_VOCABULARY.items()):
        raise FileError(
            f"GPT-2's vocabulary isn't in tiktoken's cache ({directory or 'switched off'}); "
            "give llm.c's gpt2_tokenizer.bin instead",
            errno.ENOENT,
        )
    ranks: dict[bytes, int] = _optional_module("tiktoken_ext.openai_public").gpt2()["mergeable_ranks"]
    return ranks


def _has_hash(directory: Path, name: str, sha256: str) -> bool:
    try:
        return hashlib.sha256((directory / name).read_bytes()).hexdigest() == sha256
    except OSError:
        return False


# ---- Generated models and tokens (golden/README.md) ----

_GENERATOR_CHUNK: Final = 1 << 16  # elements at a time: the working arrays stay in the processor's cache
_GENERATOR_SCALES: Final = {
    "wte": 0.04,
    "qkvw": 0.04,
    "fcw": 0.04,
    "wpe": 0.02,
    "attprojw": 0.02,
    "fcprojw": 0.02,
}
_GENERATOR_LAYERNORM_SCALE: Final = 0.1
_GENERATOR_BIAS_SCALE: Final = 0.01
_LAYERNORM_WEIGHTS: Final = frozenset({"ln1w", "ln2w", "lnfw"})
_SEED_STRIDE: Final = 100
_TOKEN_SEED: Final = 50


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's output function of every element; wraps modulo 2^64.

    Parameters
    ----------
    values
        Any number of 64-bit values, one-dimensional; not changed.
    """
    mixed = np.array(values, np.uint64, ndmin=1)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def generate_parameters(config: ModelConfig, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield name and array of every parameter of the generated model, in the checkpoint's order.

    The same on every platform. `dict(generate_parameters(…))` holds them all; the iterator one at a time.

    Parameters
    ----------
    config
        The sizes.
    seed
        Number of the model.
    """
    for number, (name, shape) in enumerate(parameter_shapes(config).items()):
        array = np.empty(math.prod(shape), np.float32)
        start = 0
        for chunk in _parameter_chunks(name, number, array.size, seed):
            array[start : start + chunk.size] = chunk
            start += chunk.size
        yield name, array.reshape(shape)


def generate_checkpoint(path: StrPath, config: ModelConfig, seed: int) -> str:
    """Write the generated model's checkpoint piece by piece and return the SHA-256 of the file in hex.

    Raises
    ------
    FileError
        If the file can't be written; what was there before is still there, whole.
    """
    digest = hashlib.sha256()
    with atomic_write(path) as file:
        for piece in _checkpoint_pieces(config, seed):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def generated_checkpoint_sha256(config: ModelConfig, seed: int) -> str:
    """Return the SHA-256 in hex of the file that `generate_checkpoint` would write, without writing it."""
    digest = hashlib.sha256()
    for piece in _checkpoint_pieces(config, seed):
        digest.update(piece)
    return digest.hexdigest()


def generate_tokens(
    seed: int, step: int, batch_size: int, seq_len: int, vocab_size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the generated inputs and targets of a step, int32 (B,T) each.

    Parameters
    ----------
    seed
        Number of the model.
    step
        Number of the step, from 0.
    batch_size, seq_len, vocab_size
        B, T and V.

    Raises
    ------
    InvalidArgumentError
        If a size isn't positive.
    """
    _check_positive(batch_size=batch_size, seq_len=seq_len, vocab_size=vocab_size)
    count = 2 * batch_size * seq_len
    ids = _stream(_SEED_STRIDE * seed + _TOKEN_SEED, step * count, count) % np.uint64(vocab_size)
    inputs, targets = ids.astype(np.int32).reshape(2, batch_size, seq_len)
    return inputs, targets


def generated_tokens_sha256(seed: int, num_steps: int, batch_size: int, seq_len: int, vocab_size: int) -> str:
    """Return the SHA-256 in hex of all steps' ids as little-endian int32, per step inputs then targets.

    Raises
    ------
    InvalidArgumentError
        If a size isn't positive.
    """
    digest = hashlib.sha256()
    for step in range(num_steps):
        for ids in generate_tokens(seed, step, batch_size, seq_len, vocab_size):
            digest.update(ids.astype("<i4").tobytes())
    return digest.hexdigest()


def _stream(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    indices = np.arange(count, dtype=np.uint64)
    indices += np.uint64(((seed << 32) + first) % 2**64)
    return mix(indices)


def _parameter_chunks(name: str, number: int, count: int, seed: int) -> Iterator[NDArray[np.float32]]:
    layernorm_weight = name in _LAYERNORM_WEIGHTS
    scale = np.float32(
        _GENERATOR_LAYERNORM_SCALE if layernorm_weight else _GENERATOR_SCALES.get(name, _GENERATOR_BIAS_SCALE)
    )
    for start in range(0, count, _GENERATOR_CHUNK):
        bits = _stream(_SEED_STRIDE * seed + number, start, min(_GENERATOR_CHUNK, count - start))
        bits >>= np.uint64(40)
        chunk = bits.astype(np.float32)
        chunk -= np.float32(2**23)
        chunk *= np.float32(2**-23)
        # Up to here every value is exact. The product is rounded once; it is 0 or at least 2^-23 times the
        # scale in magnitude, far above the subnormals, so that flush-to-zero can't change it.
        chunk *= scale
        if layernorm_weight:
            chunk += np.float32(1)
        yield chunk


def _checkpoint_pieces(config: ModelConfig, seed: int) -> Iterator[bytes]:
    yield checkpoint_header(config)
    for number, (name, shape) in enumerate(parameter_shapes(config).items()):
        for chunk in _parameter_chunks(name, number, math.prod(shape), seed):
            yield chunk.astype("<f4", copy=False).tobytes()


# ---- Untrained models ----

_INITIAL_STD: Final = 0.02
_RESIDUAL_PROJECTIONS: Final = frozenset({"attprojw", "fcprojw"})


def initial_parameters(config: ModelConfig, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield name and array of every parameter of an untrained GPT-2, in the checkpoint's order.

    As GPT-2 was initialised: weights normal with standard deviation 0.02, those of the residual projections
    (attprojw, fcprojw) divided by sqrt(2·L), biases 0, layernorm weights 1; the padding rows of wte are 0.

    Parameters
    ----------
    config
        The sizes.
    seed
        Seed of NumPy's PCG64; the same seed gives the same model with the same NumPy.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    for name, shape in parameter_shapes(config).items():
        array = np.zeros(shape, np.float32)
        if name in _LAYERNORM_WEIGHTS:
            array += np.float32(1)
        elif name.endswith("w") or name in ("wte", "wpe"):
            std = _INITIAL_STD
            if name in _RESIDUAL_PROJECTIONS:
                std /= math.sqrt(2 * config.num_layers)
            drawn = array[: config.vocab_size] if name == "wte" else array
            drawn[...] = random.standard_normal(drawn.shape, np.float32)
            drawn *= np.float32(std)
        yield name, array


# ---- Sampling ----


def sample(probabilities: NDArray[np.float32], coin: float) -> int:
    """Return the index that a coin in [0, 1) picks, as llm.c does.

    That is the first index at which the running sum, in binary32 and ascending order, exceeds the coin; the
    last index if rounding keeps the sum from ever exceeding it.

    Parameters
    ----------
    probabilities
        float32, one-dimensional, not empty.
    coin
        For example `XorShift.random_f32`.

    Raises
    ------
    InvalidArgumentError
        If there are no probabilities.
    """
    if probabilities.ndim != 1 or probabilities.size == 0:
        raise InvalidArgumentError(
            f"probabilities: expected one dimension that isn't empty, found {probabilities.shape}"
        )
    # NumPy's cumulative sum is the ordered one; its plain sum isn't.
    exceeds = np.cumsum(probabilities, dtype=np.float32) > np.float32(coin)
    return int(np.argmax(exceeds)) if exceeds.any() else probabilities.size - 1


class XorShift:
    """llm.c's random numbers: xorshift64* with the high 32 bits as output.

    Parameters
    ----------
    state
        The 64-bit state; not 0, which the generator would never leave.

    Raises
    ------
    InvalidArgumentError
        If the state is 0 or doesn't fit into 64 bits.
    """

    def __init__(self, state: int) -> None:
        if not 0 < state < 2**64:
            raise InvalidArgumentError(f"random state: expected a number in [1, 2^64), found {state}")
        self.state = state

    def random_u32(self) -> int:
        """Return the next number in [0, 2^32)."""
        state = self.state
        state ^= state >> 12
        state ^= (state << 25) % 2**64
        state ^= state >> 27
        self.state = state
        return (state * 0x2545F4914F6CDD1D) % 2**64 >> 32

    def random_f32(self) -> float:
        """Return the next number in [0, 1), a multiple of 2^-24 and so exact in binary32."""
        return (self.random_u32() >> 8) / 2**24


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise InvalidArgumentError(f"{name}: expected a positive number, found {size}")
