"""A contest of two builds of the library, or one build's turns alone, from a configuration to what was measured.

The suite's throughput tests and ``benchmarks/gate_power.py`` call it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path

from starpullm.speed.cost import CostResult, check_cost
from starpullm.speed.gate import STEP, ContestResult, compare_builds
from starpullm.speed.throughput import Configuration
from starpullm.speed.turns import Contestant, Turns

__all__ = ["BLOCKS", "Contest", "Series", "open_contest", "open_series"]

BLOCKS = 64
"""Turns of each contestant, unless another number is asked for."""

LEAD_STEPS = 2
"""Of each turn, that aren't measured: the first touches fresh memory, the second has cold caches."""

STEPS = 4
"""Of each turn, that are measured."""

_SEED = 1  # of the order within blocks


@dataclass
class Series:
    """One contestant's turns, as far as they have been run."""

    turns: Turns
    contestant: Contestant
    seconds: list[dict[str, float]] = field(default_factory=list)
    """By turn: seconds by quantity."""

    def take(self) -> float:
        """Run a turn; return the seconds of a step."""
        turn = self.turns.take(self.contestant)
        self.seconds.append({STEP: turn.step_seconds, **turn.seconds_by_operation})
        return turn.step_seconds

    def finish(self) -> tuple[float, float]:
        """Return what the machine does at most, in GFLOP/s, and the part of it that a step has; no turn can follow."""
        self.turns.finish()
        limit = statistics.median(self.contestant.peaks)
        step_seconds = statistics.median(of[STEP] for of in self.seconds)
        return limit, self.contestant.flops / step_seconds / 1e9 / limit

    @property
    def tokens(self) -> int:
        """Of a step, of all ranks."""
        return self.turns.configuration.batch_size * self.turns.configuration.seq_len

    @property
    def tokens_per_ms(self) -> float:
        """The median over turns."""
        return self.tokens / statistics.median(of[STEP] for of in self.seconds) / 1e3


@dataclass
class Contest:
    """Blocks of a turn of each build, and one more of the baseline's in a process of its own."""

    turns: Turns
    new: Series
    baseline: Series
    control: Series
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))
    _orders: list[tuple[Series, ...]] = field(default_factory=list)

    def block(self) -> float:
        """Run a block, in each six all orders at random; return the seconds of the new build's step."""
        if not self._orders:
            self._orders = list(permutations((self.new, self.baseline, self.control)))
            self._random.shuffle(self._orders)
        for series in self._orders.pop():
            series.take()
        return self.new.seconds[-1][STEP]

    def decide(self, budget: float) -> ContestResult:
        """Return the gate's result; no block can follow."""
        self.turns.finish()
        series = (self.new, self.baseline, self.control)
        return compare_builds(
            str(self.turns.configuration),
            *(of.seconds for of in series),
            tasks=self.baseline.contestant.tasks,
            tokens=self.new.tokens,
            flops=self.new.contestant.flops,
            limit_gflops=statistics.median(peak for of in series for peak in of.contestant.peaks),
            budget=budget,
        )

    def costs(self) -> CostResult:
        """Compare the graphs."""
        assert self.new.contestant.cost is not None
        assert self.baseline.contestant.cost is not None
        return check_cost(self.new.contestant.cost, self.baseline.contestant.cost)


@contextmanager
def open_contest(
    configuration: Configuration, checkpoint: Path, new: Contestant, baseline: Contestant, time_limit: float = 60.0
) -> Iterator[Contest]:
    """Start two builds' processes, and the control's.

    Parameters
    ----------
    configuration
        What they run; its iterations and warm-up steps are set to those of a turn.
    checkpoint
        The model.
    new, baseline
        The builds.
    time_limit
        Seconds for a turn.

    Raises
    ------
    RuntimeFailureError
        If a process doesn't start, then or later.
    """
    control = Contestant("control", None, baseline.environment)
    with Turns(_of_a_turn(configuration), checkpoint, [new, baseline, control], time_limit) as turns:
        yield Contest(turns, Series(turns, new), Series(turns, baseline), Series(turns, control))


@contextmanager
def open_series(
    configuration: Configuration, checkpoint: Path, contestant: Contestant, time_limit: float = 60.0
) -> Iterator[Series]:
    """Start one build's process; arguments and errors as ``open_contest``."""
    with Turns(_of_a_turn(configuration), checkpoint, [contestant], time_limit) as turns:
        yield Series(turns, contestant)


def _of_a_turn(configuration: Configuration) -> Configuration:
    return replace(configuration, warm_up=LEAD_STEPS, iterations=STEPS)
