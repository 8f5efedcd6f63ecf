"""The options of trainers and runtimes that commands and measurements have too, and the words that some can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a step is cut, summed and kept in memory: options of ``Trainer``, which says what they mean."""

    sub_batches: int = 1
    activation_sets: int = 0
    reduction: str = REDUCTIONS[0]
    weight_gradient_tiles: int = 0
    recompute: str = RECOMPUTATIONS[0]
    weight_gradients: str = WEIGHT_GRADIENTS[0]
    stages: int | Sequence[int] = 1
    schedule: str | Callable[[int, int], Sequence[Any]] = SCHEDULES[0]
    gradient_buffers: str = GRADIENT_BUFFERS[0]


def training_options(run: object) -> dict[str, Any]:
    """Return the `TrainingOptions` that are attributes of an object, by name."""
    return {option.name: getattr(run, option.name) for option in fields(TrainingOptions)}


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
