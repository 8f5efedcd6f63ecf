"""Rounds of turns of two builds, or one build's turns alone, from the start of the processes to the gate's decision."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path

from starpullm.speed.cost import CostResult, check_cost
from starpullm.speed.gate import STEP, BuildsResult, compare_builds
from starpullm.speed.turns import Contender, Turns
from starpullm.speed.workload import Workload

__all__ = ["ROUNDS", "Rounds", "Series", "open_rounds", "open_series"]

ROUNDS = 64
"""The default number of rounds."""

WARM_UP_STEPS = 2
"""Steps of each turn that aren't measured: the first touches fresh memory, the second has cold caches."""

STEPS = 4
"""Steps of each turn that are measured."""

_SEED = 1  # of the order within rounds


@dataclass
class Series:
    """The turns of one contender that have been run so far."""

    turns: Turns
    contender: Contender
    seconds: list[dict[str, float]] = field(default_factory=list)
    """For each turn: seconds by quantity."""

    def take(self) -> float:
        """Run a turn; return the seconds of a step."""
        turn = self.turns.take(self.contender)
        self.seconds.append({STEP: turn.step_seconds, **turn.seconds_by_operation})
        return turn.step_seconds

    def finish(self) -> tuple[float, float]:
        """Return the machine's limit in GFLOP/s, and a step's fraction of it; no turn can follow."""
        self.turns.finish()
        limit = statistics.median(self.contender.peaks)
        return limit, self.contender.flops / self._step_seconds / 1e9 / limit

    @property
    def tokens_per_ms(self) -> float:
        """Of all ranks, from the median over turns."""
        return self.turns.workload.tokens / self._step_seconds / 1e3

    @property
    def _step_seconds(self) -> float:
        return statistics.median(of[STEP] for of in self.seconds)


@dataclass
class Rounds:
    """Rounds of three turns: one of the new build, one of the baseline, and one of the control."""

    turns: Turns
    new: Series
    baseline: Series
    control: Series
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))
    _orders: list[tuple[Series, ...]] = field(default_factory=list)

    def run_round(self) -> float:
        """Run a round; return the seconds of the new build's step. Six rounds have all orders, in random sequence."""
        if not self._orders:
            self._orders = list(permutations((self.new, self.baseline, self.control)))
            self._random.shuffle(self._orders)
        for series in self._orders.pop():
            series.take()
        return self.new.seconds[-1][STEP]

    def decide(self, budget: float) -> BuildsResult:
        """Return the gate's result; no round can follow."""
        self.turns.finish()
        series = (self.new, self.baseline, self.control)
        return compare_builds(
            str(self.turns.workload),
            *(of.seconds for of in series),
            tasks=self.baseline.contender.tasks,
            tokens=self.turns.workload.tokens,
            flops=self.new.contender.flops,
            limit_gflops=statistics.median(peak for of in series for peak in of.contender.peaks),
            budget=budget,
        )

    def compare_costs(self) -> CostResult:
        """Compare the task graphs of the two builds."""
        assert self.new.contender.cost is not None
        assert self.baseline.contender.cost is not None
        return check_cost(self.new.contender.cost, self.baseline.contender.cost)


@contextmanager
def open_rounds(
    workload: Workload, checkpoint: Path, new: Contender, baseline: Contender, time_limit: float = 60.0
) -> Iterator[Rounds]:
    """Start the processes of two builds and of the control, a second process of the baseline.

    Parameters
    ----------
    workload
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
        If a process doesn't start; later, from a round, if one fails.
    """
    control = Contender("control", None, baseline.environment)
    with Turns(_of_a_turn(workload), checkpoint, [new, baseline, control], time_limit) as turns:
        yield Rounds(turns, Series(turns, new), Series(turns, baseline), Series(turns, control))


@contextmanager
def open_series(
    workload: Workload, checkpoint: Path, contender: Contender, time_limit: float = 60.0
) -> Iterator[Series]:
    """Start the process of one build; arguments and errors as for ``open_rounds``."""
    with Turns(_of_a_turn(workload), checkpoint, [contender], time_limit) as turns:
        yield Series(turns, contender)


def _of_a_turn(workload: Workload) -> Workload:
    return replace(workload, warm_up=WARM_UP_STEPS, iterations=STEPS)
