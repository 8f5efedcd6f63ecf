"""The options of trainers and runtimes that commands and measurements have too, and the words that some can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from starpullm.errors import InvalidArgumentError

REDUCTIONS = ("ordered", "tree", "redux")
RECOMPUTATIONS = ("none", "attention", "block")
WEIGHT_GRADIENTS = ("kept", "reused")
GRADIENT_BUFFERS = ("shared", "block")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
OFFLOAD_PLANS = ("ahead", "lru")
ARITHMETICS = ("strict", "fused")

MAX_SECONDS = 7 * 24 * 3600.0
"""No child process lives longer, and no time limit is."""

SETTINGS = (
    *("sub_batches", "activation_sets", "reduction", "weight_gradient_tiles", "recompute", "weight_gradients"),
    *("stages", "schedule", "gradient_buffers"),
)
"""How a step is cut, summed and kept in memory."""


def settings_of(run: object) -> dict[str, Any]:
    """Return the `SETTINGS` of a trainer from attributes of these names."""
    return {name: getattr(run, name) for name in SETTINGS}


def index_of_choice(option: str, word: str, words: Sequence[str]) -> int:
    """Return the number by which the library knows an option's word; others are an `InvalidArgumentError`."""
    if word not in words:
        raise InvalidArgumentError(f'{option}: found "{word}", expected one of {", ".join(words)}')
    return words.index(word)


class RuntimeConfiguration(NamedTuple):
    """The settings that a runtime is started with."""

    partition: str
    scheduler: str
    ranks: int = 1

    @property
    def id(self) -> str:
        """The configuration as part of a test's name."""
        return str(self).replace(" ", "-")

    def __str__(self) -> str:
        return f"{self.partition} {self.scheduler}" + (f" {self.ranks} ranks" if self.ranks > 1 else "")
