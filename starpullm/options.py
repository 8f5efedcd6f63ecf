"""The words that some of a trainer's options can be."""

from __future__ import annotations

from collections.abc import Sequence

from starpullm.errors import InvalidArgumentError

REDUCTIONS = ("ordered", "tree", "redux")
RECOMPUTATIONS = ("none", "attention", "block")
WEIGHT_GRADIENTS = ("kept", "reused")
GRADIENT_BUFFERS = ("shared", "block")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
OFFLOAD_PLANS = ("ahead", "lru")


def place_of(option: str, word: str, words: Sequence[str]) -> int:
    """Return the number by which the library knows an option's word; others are an `InvalidArgumentError`."""
    if word not in words:
        raise InvalidArgumentError(f'{option}: found "{word}", expected one of {", ".join(words)}')
    return words.index(word)
