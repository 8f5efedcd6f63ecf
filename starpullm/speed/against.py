"""The strict training beside others of the same model: ratios of their speeds with their spread.

Contenders that take turns see the same changes of the machine's speed, so each ratio is taken within a round, and the
median over the rounds comes last.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.speed.contender import Contender
from starpullm.speed.turns import taking_turns
from starpullm.speed.verdict import ENOUGH_VALUES, median_interval
from starpullm.speed.worker import STEP
from starpullm.speed.workload import Workload

STRICT, LIBRARY, BLAS = "strict", "library", "blas"
"""Names of contenders: the library itself; another build of it; the library with the matmuls of a BLAS."""

LOSS_TOLERANCE = 1e-3
"""The largest difference between the losses of two contenders that train the same model.

At a loss of 11 it is 1,000 roundings of binary32: far more than another order of sums causes in a few steps, and less
than the effect of a wrong gradient, learning rate or mask.
"""


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
class ContenderSpeed:
    """What was measured of one contender over the rounds, each time of the fastest step of a turn.

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
class Comparison:
    """What was measured of all contenders; the strict one is the first.

    ``configuration`` is the strict workload; its ``iterations`` is the number of rounds. ``loss_difference`` is the
    largest one between a contender's losses and the strict run's, over the steps of a turn.
    """

    configuration: Workload
    contenders: tuple[ContenderSpeed, ...]
    loss_difference: float


def compare(
    workload: Workload,
    checkpoint: Path,
    peers: Sequence[Contender],
    time_limit: float,
    progress: Callable[[], None],
) -> Comparison:
    """Let the strict run and its peers take turns, each in a process of its own.

    All start from the same model and train on the same batches. Before turns are measured, the losses of a first turn
    are compared: a contender that computes something else can't be compared. `time_limit` is for each turn. `progress`
    is called after each round.
    """
    if workload.ranks != 1 or workload.matmul != STRICT:
        raise InvalidArgumentError("against: expected a strict configuration of one rank")
    with taking_turns(workload, checkpoint, (Contender(STRICT), *peers), time_limit) as turns:
        difference = check_losses({contender.name: contender.first["losses"] for contender in turns.contenders})
        for _ in range(workload.iterations):
            turns.run_round()
            progress()
    return Comparison(
        configuration=workload,
        contenders=tuple(_speed_of(contender, turns.new, workload.tokens) for contender in turns.contenders),
        loss_difference=difference,
    )


def _speed_of(contender: Contender, strict: Contender, tokens: int) -> ContenderSpeed:
    ratios = [own[STEP] / beside[STEP] for own, beside in zip(contender.seconds, strict.seconds, strict=True)]
    low, high = median_interval(ratios)
    description = contender.first["description"]
    return ContenderSpeed(
        name=contender.name,
        description=f"{description}, {contender.library}" if contender.library else description,
        tokens_per_ms=Spread.of([tokens / own[STEP] / 1e3 for own in contender.seconds]),
        times_slower=Spread.of(ratios),
        is_within_noise=low <= 1 <= high if len(ratios) >= ENOUGH_VALUES else None,
        losses=tuple(contender.first["losses"]),
    )


def check_losses(losses: Mapping[str, Sequence[float]]) -> float:
    """Return the largest difference between a contender's losses and the strict run's, step by step.

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
