"""Rounds of turns of two builds, or one build's turns alone, from the start of the processes to the gate's decision."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

from starpullm.speed.bits import BuildBitsResult, check_build_bits, has_fixed_bits
from starpullm.speed.cost import CostResult, check_cost
from starpullm.speed.gate import STEP, BuildsResult, compare_builds
from starpullm.speed.turns import Contender, taking_turns
from starpullm.speed.workload import Workload

ROUNDS = 64
"""The default number of rounds."""

WARM_UP_STEPS = 2
"""Steps of each turn that aren't measured: the first touches fresh memory, the second has cold caches."""

STEPS = 4
"""Steps of each turn that are measured."""

_SEED = 1  # of the order within rounds


@dataclass
class Rounds:
    """Rounds of three turns: one of the new build, one of the baseline, and one of the control."""

    workload: Workload
    new: Contender
    baseline: Contender
    control: Contender

    def __post_init__(self) -> None:
        self._orders = self._shuffled()

    def _shuffled(self) -> Iterator[tuple[Contender, ...]]:
        """Yield the order of each round: six rounds have all orders, in random sequence."""
        generator = random.Random(_SEED)
        while True:
            orders = list(permutations((self.new, self.baseline, self.control)))
            generator.shuffle(orders)
            yield from orders

    def run_round(self) -> float:
        """Run a round; return the seconds of the new build's step."""
        for contender in next(self._orders):
            contender.take_turn()
        return self.new.seconds[-1][STEP]

    def decide(self, budget: float) -> BuildsResult:
        """Return the gate's result; no round can follow."""
        contenders = (self.new, self.baseline, self.control)
        for contender in contenders:
            contender.finish()
        return compare_builds(
            str(self.workload),
            *(of.seconds for of in contenders),
            tasks=self.baseline.tasks,
            tokens=self.workload.tokens,
            flops=self.new.flops,
            limit_gflops=statistics.median(peak for of in contenders for peak in of.peaks),
            budget=budget,
        )

    def compare_costs(self) -> CostResult:
        """Compare the task graphs of the two builds."""
        return check_cost(self.new.cost, self.baseline.cost)

    def compare_bits(self) -> BuildBitsResult | None:
        """Compare the tensors of the two builds after a turn; None if the workload's bits are not fixed."""
        if not has_fixed_bits(self.workload):
            return None
        return check_build_bits(self.new.digests, self.baseline.digests, WARM_UP_STEPS + STEPS)


@contextmanager
def open_rounds(
    workload: Workload, checkpoint: Path, new: Contender, baseline: Contender, time_limit: float = 60.0
) -> Iterator[Rounds]:
    """Start the processes of two builds and of the control, a second process of the baseline.

    The workload's iterations and warm-up steps are set to those of a turn. Other arguments and errors are those of
    `taking_turns`.
    """
    control = Contender("control", None, baseline.environment)
    with taking_turns(_of_a_turn(workload), checkpoint, time_limit, new, baseline, control):
        yield Rounds(workload, new, baseline, control)


@contextmanager
def open_series(
    workload: Workload, checkpoint: Path, contender: Contender, time_limit: float = 60.0
) -> Iterator[Contender]:
    """Start the processes of one build; arguments and errors are those of `open_rounds`."""
    with taking_turns(_of_a_turn(workload), checkpoint, time_limit, contender):
        yield contender


def _of_a_turn(workload: Workload) -> Workload:
    return replace(workload, warm_up=WARM_UP_STEPS, iterations=STEPS)
