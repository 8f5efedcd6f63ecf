"""The options of a trainer that commands and measurements have too, and the words that some of them can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starpullm.errors import InvalidArgumentError

REDUCTIONS = ("ordered", "tree", "redux")
RECOMPUTATIONS = ("none", "attention", "block")
WEIGHT_GRADIENTS = ("kept", "reused")
GRADIENT_BUFFERS = ("shared", "block")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
OFFLOAD_PLANS = ("ahead", "lru")

SETTINGS = (
    *("sub_batches", "activation_sets", "reduction", "weight_gradient_tiles", "recompute", "weight_gradients"),
    *("stages", "schedule", "gradient_buffers"),
)
"""How a step is cut, summed and kept in memory."""


def settings_of(run: object) -> dict[str, Any]:
    """Return the `SETTINGS` of a trainer from attributes of these names."""
    return {name: getattr(run, name) for name in SETTINGS}


def place_of(option: str, word: str, words: Sequence[str]) -> int:
    """Return the number by which the library knows an option's word; others are an `InvalidArgumentError`."""
    if word not in words:
        raise InvalidArgumentError(f'{option}: found "{word}", expected one of {", ".join(words)}')
    return words.index(word)
