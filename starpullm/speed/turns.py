"""Contenders that run the same workload in turn: turns of a few steps, faster than the machine's speed changes."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path

from starpullm.checks.result import Result
from starpullm.processes.lock import machine_lock
from starpullm.speed.builds import GraphCost, check_build_bits, check_cost, has_fixed_bits
from starpullm.speed.contender import Contender
from starpullm.speed.gate import Speed, compare_builds
from starpullm.speed.worker import STEP
from starpullm.speed.workload import Workload

ROUNDS = 64
"""The default number of the gate's rounds."""

WARM_UP_STEPS = 2
"""Steps of each turn that aren't measured: the first touches fresh memory, the second has cold caches."""

STEPS = 4
"""Steps of each turn that are measured."""

_SEED = 1  # of the order within rounds


class Turns:
    """Rounds in which each contender takes a turn. The first one is what is compared with the others."""

    def __init__(self, workload: Workload, contenders: Sequence[Contender]) -> None:
        self.workload = workload
        self.contenders = contenders
        self.new = contenders[0]
        self._orders = self._shuffled()
        self.peaks: list[float] = []
        """In 10^9 operations per second."""

    def _shuffled(self) -> Iterator[tuple[Contender, ...]]:
        """Yield the order of each round: as many rounds as there are orders have all of them, in random sequence."""
        generator = random.Random(_SEED)
        while True:
            orders = list(permutations(self.contenders))
            generator.shuffle(orders)
            yield from orders

    def run_round(self) -> float:
        """Run a round; return the seconds of the first contender's step."""
        for contender in next(self._orders):
            contender.seconds.append(contender.ask("turn"))
        return self.new.seconds[-1][STEP]

    def measure_peaks(self) -> None:
        """Measure the limit of the contenders' cores, before and after the turns."""
        for contender in self.contenders:
            self.peaks += contender.ask("peaks")

    def finish(self) -> Speed:
        """Return the first contender's speed, from medians. No round can follow."""
        self.measure_peaks()
        limit, seconds = statistics.median(self.peaks), statistics.median(of[STEP] for of in self.new.seconds)
        return Speed(self.workload.tokens / seconds / 1e3, limit, self.new.first["flops"] / seconds / 1e9 / limit)

    # The methods below are for the contenders of `with_control`.

    def decide(self, speed: Speed, budget: float) -> Result:
        """Return the gate's result."""
        return compare_builds(
            str(self.workload),
            *(contender.seconds for contender in self.contenders),
            tasks=self.contenders[1].first["tasks"],
            speed=speed,
            budget=budget,
        )

    def compare_costs(self) -> Result:
        """Compare the task graphs of the two builds."""
        return check_cost(*(GraphCost(**contender.first["cost"]) for contender in self.contenders[:2]))

    def compare_bits(self) -> Result | None:
        """Compare the tensors of the two builds after a turn; None if the workload's bits are not fixed."""
        if not has_fixed_bits(self.workload):
            return None
        new, baseline, _ = (contender.first["digests"] for contender in self.contenders)
        return check_build_bits(new, baseline, WARM_UP_STEPS + STEPS)


def with_control(new: Contender, baseline: Contender) -> tuple[Contender, Contender, Contender]:
    """Return two builds and the control: a second process of the baseline, which shows how much two of them differ."""
    return new, baseline, Contender("control", environment=baseline.environment)


@contextmanager
def taking_turns(
    workload: Workload, checkpoint: Path, contenders: Sequence[Contender], time_limit: float = 60.0
) -> Iterator[Turns]:
    """Hold the machine lock and start the processes of all contenders, which are ended at the end of the block.

    Each runs a first turn, which isn't measured. The workload's iterations and warm-up steps are set to those of a
    turn, which may take `time_limit` seconds.
    """
    turns = Turns(replace(workload, warm_up=WARM_UP_STEPS, iterations=STEPS), contenders)
    with ExitStack() as stack:
        stack.enter_context(machine_lock())
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="starpullm-turns-"))
        for contender in contenders:
            contender.environment.setdefault("STARPU_HOME", os.environ.get("STARPU_HOME", directory))
            contender.start(turns.workload, checkpoint, time_limit, stack)
            contender.first = contender.ask("first")
        turns.measure_peaks()
        yield turns
