"""A model's sizes, and the names, shapes and order of its parameters, which three of the formats share.

Size letters: B batch, T sequence length, C channels, NH heads, L layers, V vocabulary, Vp padded vocabulary, maxT the
longest sequence.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from starpullm.errors import InvalidArgumentError
from starpullm.files.header import HEADER_BYTES, INT32_MAX

INT64_MAX: Final = 2**63 - 1

UNLAYERED_PARAMETERS: Final = frozenset({"wte", "wpe", "lnfw", "lnfb"})
"""The parameters that don't belong to a layer."""


@dataclass(frozen=True)
class ModelConfig:
    """A model's sizes, in the order of the checkpoint's header.

    They are maxT, V, L, NH, C and Vp. `InvalidArgumentError` is raised if a size isn't positive or exceeds int32, C
    isn't divisible by NH, Vp < V, or the size of the checkpoint exceeds int64.
    """

    max_seq_len: int
    vocab_size: int
    num_layers: int
    num_heads: int
    channels: int
    padded_vocab_size: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        for field in fields(self):
            value = getattr(self, field.name)
            try:
                object.__setattr__(self, field.name, operator.index(value))
            except TypeError:
                raise InvalidArgumentError(
                    f"model config, {field.name}: expected an integer, found {value!r}"
                ) from None
        problem = config_problem(asdict(self))
        if problem is not None:
            name, expected, found = problem
            raise InvalidArgumentError(f"model config, {name}: expected {expected}, found {found}")


def padded_vocab(vocab_size: int) -> int:
    """Return V rounded up to a multiple of 128, as llm.c does."""
    return -(-vocab_size // 128) * 128


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
    """Return the total number of elements of all parameters."""
    return sum(num_elements(shape) for shape in parameter_shapes(config).values())


def config_problem(sizes: Mapping[str, int]) -> tuple[str, str, str] | None:
    """Return the first size that is wrong, as (name, what was expected, what was found), or None."""
    for name, value in sizes.items():
        if not 1 <= value <= INT32_MAX:
            return name, f"from 1 to {INT32_MAX}", str(value)
    vocab_size, padded_vocab_size = sizes["vocab_size"], sizes["padded_vocab_size"]
    layers, channels = sizes["num_layers"], sizes["channels"]
    if channels % sizes["num_heads"] != 0:
        return "channels", f"divisible by num_heads = {sizes['num_heads']}", str(channels)
    if padded_vocab_size < vocab_size:
        return "padded_vocab_size", f"at least vocab_size = {vocab_size}", str(padded_vocab_size)
    # As num_parameters, which needs a valid config.
    tables = (padded_vocab_size + sizes["max_seq_len"]) * channels
    parameters = tables + layers * (12 * channels + 13) * channels + 2 * channels
    if HEADER_BYTES + 4 * parameters > INT64_MAX:
        return "channels", "such that the checkpoint's bytes fit into 64 bits", f"{channels} in {layers} layers"
    return None


def tensor_sections(config: ModelConfig) -> list[tuple[str, int]]:
    """Return name and bytes of every parameter, in the checkpoint's order."""
    return [(name, 4 * num_elements(shape)) for name, shape in parameter_shapes(config).items()]


def num_elements(shape: tuple[int, ...]) -> int:
    """Return the number of elements of an array of this shape."""
    return math.prod(shape)
