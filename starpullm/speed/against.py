"""The strict training and others of the same model, in turn: ratios of their speeds with their spread.

The machine's speed changes from minute to minute. Contenders that take turns see the same changes, so each ratio is
taken within a round, and the median over the rounds comes last.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.processes.children import Child, Service
from starpullm.processes.progress import report_phase
from starpullm.speed.measure import result_of
from starpullm.speed.noise import ENOUGH_VALUES, median_interval
from starpullm.speed.workload import SEED, Workload, open_runtime, open_trainer

STRICT, LIBRARY, BLAS = "strict", "library", "blas"
"""Names of contenders: the library itself; another build of it; the library with the matmuls of a BLAS."""

LOSS_TOLERANCE = 1e-3
"""The largest difference between the losses of two contenders that train the same model.

At a loss of 11 it is 1,000 roundings of binary32: far more than another order of sums causes in a step or two, and less
than the effect of a wrong gradient, learning rate or mask.
"""

_LEAD_STEPS = 2  # at least, before measured turns: the second loss depends on the gradients and the update of the first
_TURN_SECONDS = 0.25  # at least, so that the time to wake a stopped process is negligible
_MIN_TURN_STEPS = 5  # so that the first step, with cold caches, and the last, without a successor, don't dominate
_MAX_TURN_STEPS = 1000

_Batch: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int32]]
Steps: TypeAlias = Callable[[Sequence[_Batch]], list[float]]
"""Run a step on each batch and return the losses."""


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
    """What was measured of one contender over the rounds.

    ``description`` is what it computes with, as it reports itself. ``times_slower`` is the strict run's tokens per
    millisecond divided by this one's, within each round: above 1, the strict run is faster. ``losses`` are those of the
    first steps. ``is_within_noise`` says whether the median of further rounds could be 1 as well; fewer rounds than
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

    ``configuration`` is the strict workload; its ``iterations`` is the number of rounds. A turn of each contender has
    as many steps as take a quarter of a second, at least five. ``loss_difference`` is the largest one between a
    contender's losses and the strict run's, over the first steps.
    """

    configuration: Workload
    contenders: tuple[ContenderSpeed, ...]
    steps_per_turn: dict[str, int]
    loss_difference: float


@contextmanager
def _serve_training(
    comm: None, name: str, workload: Mapping[str, Any], checkpoint: str
) -> Iterator[tuple[str, Callable[[int], dict[str, Any]]]]:
    """Load the model and yield what computes the matmuls; a request is a number of steps."""
    report_phase("loading the model")
    own, model = Workload(**workload), Path(checkpoint)
    with open_runtime(own) as runtime, open_trainer(own, model, runtime, trace=False) as trainer:

        def steps(batches: Sequence[_Batch]) -> list[float]:
            losses = [trainer.submit(*batch) for batch in batches]
            trainer.wait()
            return [float(loss) for loss in losses]

        yield runtime.matmul, timed_steps(own, model, steps)


def timed_steps(workload: Workload, checkpoint: Path, steps: Steps) -> Callable[[int], dict[str, Any]]:
    """Return a function that runs the next so many steps of the workload, and returns their seconds and losses."""
    sizes = (workload.batch_size, workload.seq_len, checkpoint_config(checkpoint).vocab_size)
    done = 0

    def answer(number: int) -> dict[str, Any]:
        nonlocal done
        batches = [generate_tokens(SEED, step, *sizes) for step in range(done, done + number)]
        report_phase(f"running steps from {done} on")
        begin = time.monotonic()
        losses = steps(batches)
        seconds = time.monotonic() - begin
        done += number
        return {"seconds": seconds, "losses": losses}

    return answer


@dataclass(frozen=True)
class Peer:
    """A contender beside the strict run.

    ``library`` is the native library that its process opens, if it is another one. ``service`` runs in its process, as
    ``children.Child`` describes: it yields what the contender computes with, and the result of `timed_steps`.
    """

    name: str
    workload: Workload
    library: Path | None = None
    service: Callable[..., Service] = _serve_training


def compare(
    workload: Workload,
    checkpoint: Path,
    peers: Sequence[Peer],
    *,
    time_limit: float,
    progress: Callable[[], None],
) -> Comparison:
    """Let the strict run and its peers take turns, each in a process of its own.

    All start from the same model and train on the same batches. Before turns are measured, the losses of the first
    steps are compared: a contender that computes something else can't be compared. `time_limit` is for each reply.
    `progress` is called after each round.

    Raises
    ------
    InvalidArgumentError
        If a workload isn't possible.
    MissingDependencyError
        If there is no BLAS.
    RuntimeFailureError
        If a contender fails, doesn't reply in time, or has other losses than the strict run.
    """
    if workload.ranks != 1 or workload.matmul != STRICT:
        raise InvalidArgumentError("against: expected a strict configuration of one rank")
    with ExitStack() as stack:
        contenders = [_Contender(of, checkpoint, time_limit, stack) for of in (Peer(STRICT, workload), *peers)]
        _run_lead_steps(contenders, max(workload.warm_up, _LEAD_STEPS))
        difference = check_losses({contender.name: contender.losses for contender in contenders})
        for round_number in range(workload.iterations):
            for contender in contenders if round_number % 2 == 0 else reversed(contenders):
                contender.take_turn()
            progress()
    return Comparison(
        configuration=workload,
        contenders=tuple(contender.speed(contenders[0].speeds) for contender in contenders),
        steps_per_turn={contender.name: contender.steps for contender in contenders},
        loss_difference=difference,
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


# ---- The contenders ----


def _run_lead_steps(contenders: Sequence[_Contender], lead: int) -> None:
    """Run each contender's first `lead` steps, at least two, and set the number of steps of its turns."""
    # The first step compiles, calibrates and touches memory: its time says nothing about later steps.
    for contender in contenders:
        contender.losses = contender.run(1)[1]
    for contender in contenders:
        seconds, losses = contender.run(lead - 1)
        contender.losses += losses
        steps = math.ceil(_TURN_SECONDS * (lead - 1) / seconds)
        contender.steps = min(max(steps, _MIN_TURN_STEPS), _MAX_TURN_STEPS)


class _Contender:
    """A contender's process, which the stack ends, and what was measured of it."""

    def __init__(self, peer: Peer, checkpoint: Path, time_limit: float, stack: ExitStack) -> None:
        self.name = peer.name
        self.losses: list[float] = []
        self.speeds: list[float] = []
        """Tokens per millisecond, by round."""
        self.steps = 1
        """Of a turn."""
        self._tokens = peer.workload.tokens
        self._time_limit = time_limit
        arguments = {"name": peer.name, "workload": asdict(peer.workload), "checkpoint": str(checkpoint)}
        environment = {} if peer.library is None else {"STARPULLM_LIB": str(peer.library)}
        self._child = stack.enter_context(
            Child(peer.name, peer.service, arguments, request_name="the turn", environment=environment)
        )
        self.description = result_of(self._child, self._child.start(time_limit))
        if peer.library is not None:
            self.description += f", {peer.library}"

    def run(self, steps: int) -> tuple[float, list[float]]:
        """Run so many steps; return their seconds and losses."""
        result = result_of(self._child, self._child.ask(steps, self._time_limit))
        return result["seconds"], result["losses"]

    def take_turn(self) -> None:
        seconds, _ = self.run(self.steps)
        self.speeds.append(self.steps * self._tokens / seconds / 1e3)

    def speed(self, strict_speeds: Sequence[float]) -> ContenderSpeed:
        ratios = [strict / own for strict, own in zip(strict_speeds, self.speeds, strict=True)]
        low, high = median_interval(ratios)
        return ContenderSpeed(
            name=self.name,
            description=self.description,
            tokens_per_ms=Spread.of(self.speeds),
            times_slower=Spread.of(ratios),
            is_within_noise=low <= 1 <= high if len(ratios) >= ENOUGH_VALUES else None,
            losses=tuple(self.losses),
        )
