"""The library's strict training beside another way of doing the same, step by step in turns: ratios with their spread.

``starpullm bench --against`` calls it. The machine's speed changes from minute to minute; who takes turns meets the
same changes, so a ratio is taken within each round, and only then the median over rounds.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from starpullm.checks.result import json_value
from starpullm.errors import InvalidArgumentError, MissingDependencyError, RuntimeFailureError, StarpullmError
from starpullm.processes.children import Child, Raised, Reply
from starpullm.speed.peers.serve import COMPILED, EAGER, serve_steps
from starpullm.speed.throughput import Configuration

__all__ = ["OPPONENTS", "STRICT", "Comparison", "Contender", "Spread", "check_losses", "compare"]

OPPONENTS = ("blas", "torch")
STRICT, BLAS = "strict", "blas"

LOSS_TOLERANCE = 1e-3
"""The most by which losses may differ for a comparison to be one of the same training.

At a loss of 11 it is 1,000 roundings of binary32: far more than another order of sums makes in a step or two, and less
than a wrong gradient, learning rate or mask.
"""

_LEAD_STEPS = 2  # at least, before any is timed: the second loss shows the first one's gradients and update
_TURN_SECONDS = 0.25  # at least: waking up costs nothing against it
_MIN_TURN_STEPS = 5  # the first finds cold caches, and the last has no next one to go on with: both count
_MAX_TURN_STEPS = 1000


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
class Contender:
    """One way of training.

    Parameters
    ----------
    name
        ``strict``, ``blas``, ``torch eager`` or ``torch compiled``.
    description
        What it is, in its own words.
    tokens_per_ms
        Over the rounds.
    times_slower
        The strict run's tokens per millisecond ÷ this one's, within each round: above 1, the strict run is faster.
    losses
        Of the first steps.
    """

    name: str
    description: str
    tokens_per_ms: Spread
    times_slower: Spread
    losses: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was measured of all contenders; the strict one is the first.

    Parameters
    ----------
    configuration
        The strict one's; its ``iterations`` is the number of rounds.
    contenders
        In the order of their first turns.
    steps_per_turn
        Of each, by name: as many as take a quarter of a second, at least one.
    loss_difference
        The largest between a contender and the strict run over the first steps.
    left_out
        Contenders that weren't there, with the reason.
    """

    configuration: Configuration
    contenders: tuple[Contender, ...]
    steps_per_turn: dict[str, int]
    loss_difference: float
    left_out: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names of the fields."""
        return {field.name: json_value(getattr(self, field.name)) for field in fields(self)}


def compare(
    configuration: Configuration,
    checkpoint: Path,
    opponents: Sequence[str],
    *,
    blas_library: str | None = None,
    time_limit: float = 1800.0,
    progress: Callable[[], None] | None = None,
) -> Comparison:
    """Let the strict run and its opponents take turns, each in a process of its own.

    All start from the same model and see the same batches. Before anything is timed, the losses of the first steps are
    compared: who computes something else is no opponent.

    Parameters
    ----------
    configuration
        The strict run, of one rank. Opponents have as many threads as its partition; ``blas`` has its graph as well.
    checkpoint
        The model.
    opponents
        Of ``OPPONENTS``. ``torch`` stands for two, PyTorch as it is and, if there is a C++ compiler, compiled.
    blas_library
        As ``Runtime``'s, of ``blas``.
    time_limit
        Seconds for each answer; the first takes ``torch.compile`` a minute or more.
    progress
        Called after each round.

    Raises
    ------
    InvalidArgumentError
        If a configuration can't be had.
    MissingDependencyError
        If there is no BLAS or no PyTorch.
    RuntimeFailureError
        If a contender fails, is late, or its losses aren't the strict run's.
    """
    unknown = [name for name in opponents if name not in OPPONENTS]
    if unknown:
        raise InvalidArgumentError(f'against: found "{unknown[0]}", expected {" or ".join(OPPONENTS)}')
    if configuration.ranks != 1 or configuration.matmul != STRICT:
        raise InvalidArgumentError("against: expected a strict configuration of one rank")
    if not time_limit > 0:
        raise InvalidArgumentError(f"time_limit: found {time_limit:g}, expected a positive number of seconds")
    configurations, left_out = _contenders(configuration, opponents, blas_library)
    tokens = configuration.batch_size * configuration.seq_len
    with ExitStack() as stack:
        turns = []
        for name, own in configurations.items():
            turn = _Turns(name, own, checkpoint, time_limit)
            stack.callback(turn.end)
            turn.start()
            turns.append(turn)
        lead = max(configuration.warm_up, _LEAD_STEPS)
        # One step first: it compiles, calibrates and touches its memory, and says nothing about how long others take.
        losses = {turn.name: turn.take(1)[1] for turn in turns}
        for turn in turns:
            seconds, more = turn.take(lead - 1)
            losses[turn.name] += more
            turn.steps = min(max(math.ceil(_TURN_SECONDS * (lead - 1) / seconds), _MIN_TURN_STEPS), _MAX_TURN_STEPS)
        difference = check_losses(losses)
        speeds: dict[str, list[float]] = {turn.name: [] for turn in turns}
        for round_number in range(configuration.iterations):
            for turn in turns if round_number % 2 == 0 else reversed(turns):
                seconds, _ = turn.take(turn.steps)
                speeds[turn.name].append(turn.steps * tokens / seconds / 1e3)
            if progress:
                progress()
    return Comparison(
        configuration=configuration,
        contenders=tuple(
            Contender(
                name=turn.name,
                description=turn.description,
                tokens_per_ms=Spread.of(speeds[turn.name]),
                times_slower=Spread.of(
                    [own / other for own, other in zip(speeds[STRICT], speeds[turn.name], strict=True)]
                ),
                losses=tuple(losses[turn.name]),
            )
            for turn in turns
        ),
        steps_per_turn={turn.name: turn.steps for turn in turns},
        loss_difference=difference,
        left_out=left_out,
    )


def check_losses(losses: Mapping[str, Sequence[float]]) -> float:
    """Return the largest difference of any contender's losses from the strict run's, step by step.

    Raises
    ------
    RuntimeFailureError
        If it is more than ``LOSS_TOLERANCE``, or no number.
    """
    largest = 0.0
    for name, found in losses.items():
        for step, (value, expected) in enumerate(zip(found, losses[STRICT], strict=True)):
            difference = abs(value - expected)
            if not difference <= LOSS_TOLERANCE:
                raise RuntimeFailureError(
                    f"{name}: step {step}: its loss is {value:.6f}, expected the strict run's {expected:.6f} to within "
                    f"{LOSS_TOLERANCE:g}: it doesn't train the same model, and its speed says nothing"
                )
            largest = max(largest, difference)
    return largest


# ---- How it works ----

_FAILURES: dict[str, type[StarpullmError]] = {
    kind.__name__: kind for kind in (InvalidArgumentError, MissingDependencyError)
}


def _contenders(
    configuration: Configuration, opponents: Sequence[str], blas_library: str | None
) -> tuple[dict[str, Configuration], dict[str, str]]:
    """Return contenders with their configurations, and those that can't be there with the reason."""
    found = {STRICT: configuration}
    left_out = {}
    if BLAS in opponents:
        found[BLAS] = replace(configuration, matmul="blas", blas_library=blas_library)
    if "torch" in opponents:
        found[EAGER] = configuration
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler):
            found[COMPILED] = configuration
        else:
            left_out[COMPILED] = f"found no C++ compiler {compiler}, which torch.compile calls"
    return found, left_out


class _Turns:
    """A contender's process."""

    def __init__(self, name: str, configuration: Configuration, checkpoint: Path, time_limit: float) -> None:
        self.name = name
        self.description = ""
        self.steps = 1
        self._time_limit = time_limit
        arguments = {"kind": name, "configuration": asdict(configuration), "checkpoint": str(checkpoint)}
        self._child = Child(name, serve_steps, arguments, request_name="the turn")

    def start(self) -> None:
        self.description = _result(self._child.start(self._time_limit))

    def take(self, steps: int) -> tuple[float, list[float]]:
        """Let it do so many steps; return their seconds and losses."""
        result = _result(self._child.ask(steps, self._time_limit))
        return result["seconds"], result["losses"]

    def end(self) -> None:
        self._child.end()


def _result(reply: Reply) -> Any:
    if isinstance(reply, Raised) and reply.kind in _FAILURES:
        raise _FAILURES[reply.kind](f"{reply.child}: {reply.sentence}")
    return reply.result()
