"""The strict training beside others of the same model: ratios of their speeds with their spread.

Variants that take turns see the same changes of the machine's speed, so each ratio is taken within a round, and the
median over the rounds comes last.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.speed.interleaved_rounds import interleaved_rounds
from starpullm.speed.speed_verdict import ENOUGH_VALUES, interval
from starpullm.speed.variant import Variant
from starpullm.speed.worker import STEP
from starpullm.speed.workload import Workload

STRICT, LIBRARY, BLAS = "strict", "library", "blas"
"""Names of variants: the library itself; another build of it; the library with the matmuls of a BLAS."""

LOSS_TOLERANCE = 1e-3
"""The largest difference between the losses of two variants that train the same model.

At a loss of 11 it is 1,000 roundings of binary32: far more than another order of sums causes in a few steps, and less
than the effect of a wrong gradient, learning rate or mask.
"""

_TAIL = 0.025
"""Of the interval of 95 % by which two variants are within noise of each other."""


@dataclass(frozen=True)
class Spread:
    """Median, least and most of a number of values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, kw_only=True)
class VariantSpeed:
    """What was measured of one variant over the rounds, each time of the fastest step of a turn.

    ``description`` is what it computes with, as it reports itself. ``times_slower`` is the strict run's tokens per
    millisecond divided by this one's, within each round: above 1, the strict run is faster. ``losses`` are those of the
    steps of a turn. ``is_within_noise`` says whether the median of further rounds could be 1 as well; fewer rounds than
    `ENOUGH_VALUES` don't tell, and it is None.
    """

    name: str
    description: str
    tokens_per_ms: Spread
    times_slower: Spread
    is_within_noise: bool | None
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SpeedComparison:
    """What was measured of all variants; the strict one is the first.

    ``configuration`` is the strict workload; its ``iterations`` is the number of rounds. ``loss_difference`` is the
    largest one between a variant's losses and the strict run's, over the steps of a turn.
    """

    configuration: Workload
    variants: tuple[VariantSpeed, ...]
    loss_difference: float


def compare(
    workload: Workload, checkpoint: Path, peers: Sequence[Variant], time_limit: float, progress: Callable[[], None]
) -> SpeedComparison:
    """Let the strict run and its peers take turns, each in a process of its own.

    All start from the same model and train on the same batches. Before turns are measured, the losses of a first turn
    are compared: a variant that computes something else can't be compared. `time_limit` is for each turn. `progress`
    is called after each round.
    """
    if workload.ranks != 1 or workload.matmul != STRICT:
        raise InvalidArgumentError("against: expected a strict configuration of one rank")
    with interleaved_rounds(workload, checkpoint, (Variant(STRICT), *peers), time_limit) as rounds:
        difference = check_losses({variant.name: variant.first["losses"] for variant in rounds.variants})
        for _ in range(workload.iterations):
            rounds.run_round()
            progress()
    return SpeedComparison(
        configuration=workload,
        variants=tuple(_speed_of(variant, rounds.new, workload.tokens) for variant in rounds.variants),
        loss_difference=difference,
    )


def _speed_of(variant: Variant, strict: Variant, tokens: int) -> VariantSpeed:
    ratios = [own[STEP] / beside[STEP] for own, beside in zip(variant.seconds, strict.seconds, strict=True)]
    ((_, low, high),) = interval([np.log(ratios)[:, None]], _TAIL).T
    description = variant.first["description"]
    return VariantSpeed(
        name=variant.name,
        description=f"{description}, {variant.library}" if variant.library else description,
        tokens_per_ms=Spread.of([tokens / own[STEP] / 1e3 for own in variant.seconds]),
        times_slower=Spread.of(ratios),
        is_within_noise=bool(low <= 0 <= high) if len(ratios) >= ENOUGH_VALUES else None,
        losses=tuple(variant.first["losses"]),
    )


def check_losses(losses: Mapping[str, Sequence[float]]) -> float:
    """Return the largest difference between a variant's losses and the strict run's, step by step.

    One that is larger than ``LOSS_TOLERANCE`` or not a number is a `RuntimeFailureError`.
    """
    largest = 0.0
    for name, found in losses.items():
        for step, (value, expected) in enumerate(zip(found, losses[STRICT], strict=True)):
            difference = abs(value - expected)
            if not difference <= LOSS_TOLERANCE:
                raise RuntimeFailureError(
                    f"{name}: step {step}: its loss is {value:.6f}, expected the strict run's {expected:.6f} to within "
                    f"{LOSS_TOLERANCE:g}: it doesn't train the same model, so the speeds can't be compared"
                )
            largest = max(largest, difference)
    return largest
