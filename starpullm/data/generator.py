"""Generated models and tokens, equal on all platforms (golden/README.md), and untrained models.

Size letters: B batch, T sequence length, C channels, L layers, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starpullm.data.sizes import check_positive
from starpullm.files.arrays import FLOAT32, bytes_of
from starpullm.files.atomic import atomic_write, require_space
from starpullm.files.checkpoint import checkpoint_header
from starpullm.files.header import StrPath
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes

_GENERATOR_CHUNK: Final = 1 << 16  # elements at a time: the working arrays, 512 KB each, stay in a cache
_INITIAL_CHUNK: Final = 1 << 20
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
    """Return the output function of splitmix64 of each 64-bit value, modulo 2^64."""
    mixed = np.array(values, np.uint64, ndmin=1)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def generate_parameters(config: ModelConfig, seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield name and array of each parameter of the generated model, in the checkpoint's order."""
    for number, (name, shape) in enumerate(parameter_shapes(config).items()):
        array = np.concatenate(list(_parameter_chunks(name, number, math.prod(shape), seed)))
        yield name, array.reshape(shape)


def generate_checkpoint(path: StrPath, config: ModelConfig, seed: int) -> str:
    """Write the checkpoint of the generated model in pieces, and return the SHA-256 of the file in hex.

    `FileError` is raised if there is no room for the file, or it can't be written; an existing one is then unchanged.
    """
    digest, header = hashlib.sha256(), checkpoint_header(config)
    require_space(path, len(header) + FLOAT32.itemsize * num_parameters(config))
    with atomic_write(path) as file:
        file.write(header)
        digest.update(header)
        for number, (name, shape) in enumerate(parameter_shapes(config).items()):
            for chunk in _parameter_chunks(name, number, math.prod(shape), seed):
                digest.update(piece := bytes_of(chunk, FLOAT32))
                file.write(piece)
    return digest.hexdigest()


def generate_tokens(
    seed: int, step: int, batch_size: int, seq_len: int, vocab_size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the generated inputs and targets of a step, from 0, int32 (B,T) each; ``seed`` is the model's number.

    `InvalidArgumentError` is raised for a size that isn't positive.
    """
    check_positive(batch_size=batch_size, seq_len=seq_len, vocab_size=vocab_size)
    count = 2 * batch_size * seq_len
    ids = _stream(_SEED_STRIDE * seed + _TOKEN_SEED, step * count, count) % np.uint64(vocab_size)
    inputs, targets = ids.astype(np.int32).reshape(2, batch_size, seq_len)
    return inputs, targets


def generated_tokens_sha256(seed: int, num_steps: int, batch_size: int, seq_len: int, vocab_size: int) -> str:
    """Return the SHA-256 in hex of the ids of all steps as little-endian int32, inputs before targets in each step."""
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
        # All values up to here are exact. The product is rounded once. It is 0, or at least 2^-23 times the scale and
        # so never denormal, so that flush-to-zero doesn't change it.
        chunk *= scale
        if layernorm_weight:
            chunk += np.float32(1)
        yield chunk


_INITIAL_STD: Final = 0.02
_RESIDUAL_PROJECTIONS: Final = frozenset({"attprojw", "fcprojw"})


def initial_checkpoint(path: StrPath, config: ModelConfig, seed: int) -> None:
    """Write the checkpoint of an untrained GPT-2 in pieces, so that it needs little memory.

    The initialisation is that of GPT-2: weights are normally distributed with standard deviation 0.02, divided by
    sqrt(2·L) for the residual projections (attprojw, fcprojw); biases are 0 and layernorm weights 1. The padding rows
    of wte are 0. The generator is NumPy's PCG64: the same seed and version of NumPy give the same model.

    `FileError` is raised if there is no room for the file, or it can't be written; an existing one is then unchanged.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    header = checkpoint_header(config)
    require_space(path, len(header) + FLOAT32.itemsize * num_parameters(config))
    with atomic_write(path) as file:
        file.write(header)
        for name in parameter_shapes(config):
            for chunk in _initial_chunks(config, name, random):
                file.write(bytes_of(chunk, FLOAT32))


def _initial_chunks(config: ModelConfig, name: str, random: np.random.Generator) -> Iterator[NDArray[np.float32]]:
    """Yield the values of a parameter in order; the numbers drawn don't depend on how they are cut into chunks."""
    count = math.prod(parameter_shapes(config)[name])
    std = 0.0
    if name not in _LAYERNORM_WEIGHTS and (name.endswith("w") or name in ("wte", "wpe")):
        std = _INITIAL_STD
        if name in _RESIDUAL_PROJECTIONS:
            std /= math.sqrt(2 * config.num_layers)
    drawn = config.vocab_size * config.channels if name == "wte" else count
    for start in range(0, count, _INITIAL_CHUNK):
        chunk = np.zeros(min(_INITIAL_CHUNK, count - start), np.float32)
        if name in _LAYERNORM_WEIGHTS:
            chunk += np.float32(1)
        elif std and start < drawn:
            part = chunk[: drawn - start]
            part[...] = random.standard_normal(part.shape, np.float32)
            part *= np.float32(std)
        yield chunk
