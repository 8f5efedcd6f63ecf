"""Interleaved rounds: variants run the same workload in turns of a few steps, before the machine's speed changes."""

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
from starpullm.speed.gate import BuildSpeed, compare_builds
from starpullm.speed.variant import Variant
from starpullm.speed.worker import STEP
from starpullm.speed.workload import Workload

ROUNDS = 64
"""The default number of the gate's rounds."""

WARM_UP_STEPS = 2
"""Steps of each turn that aren't measured: the first touches fresh memory, the second has cold caches."""

STEPS = 4
"""Steps of each turn that are measured."""

_SEED = 1  # of the order within rounds


class InterleavedRounds:
    """Rounds in which each variant takes a turn. The first one is what is compared with the others."""

    def __init__(self, workload: Workload, variants: Sequence[Variant]) -> None:
        self.workload = workload
        self.variants = variants
        self.new = variants[0]
        self._orders = self._shuffled()
        self.peaks: list[float] = []
        """In 10^9 operations per second."""

    def _shuffled(self) -> Iterator[tuple[Variant, ...]]:
        """Yield the order of each round: as many rounds as there are orders have all of them, in random sequence."""
        generator = random.Random(_SEED)
        while True:
            orders = list(permutations(self.variants))
            generator.shuffle(orders)
            yield from orders

    def run_round(self) -> float:
        """Run a round; return the seconds of the first variant's step."""
        for variant in next(self._orders):
            variant.seconds.append(variant.ask("turn"))
        return self.new.seconds[-1][STEP]

    def measure_peaks(self) -> None:
        """Measure the limit of the variants' cores, before and after the turns."""
        for variant in self.variants:
            self.peaks += variant.ask("peaks")

    def finish(self) -> BuildSpeed:
        """Return the first variant's speed, from medians. No round can follow."""
        self.measure_peaks()
        limit, seconds = statistics.median(self.peaks), statistics.median(turn[STEP] for turn in self.new.seconds)
        return BuildSpeed(self.workload.tokens / seconds / 1e3, limit, self.new.first["flops"] / seconds / 1e9 / limit)

    # The methods below are for the variants of `with_control`.

    def decide(self, speed: BuildSpeed, budget: float) -> Result:
        """Return the gate's result."""
        return compare_builds(
            str(self.workload),
            *(variant.seconds for variant in self.variants),
            tasks=self.variants[1].first["tasks"],
            speed=speed,
            budget=budget,
        )

    def compare_costs(self) -> Result:
        """Compare the task graphs of the two builds."""
        return check_cost(*(GraphCost(**variant.first["cost"]) for variant in self.variants[:2]))

    def compare_bits(self) -> Result | None:
        """Compare the tensors of the two builds after a turn; None if the workload's bits are not fixed."""
        if not has_fixed_bits(self.workload):
            return None
        new, baseline, _ = (variant.first["digests"] for variant in self.variants)
        return check_build_bits(new, baseline, WARM_UP_STEPS + STEPS)


def with_control(new: Variant, baseline: Variant) -> tuple[Variant, Variant, Variant]:
    """Return two builds and the control: a second process of the baseline, which shows how much two of them differ."""
    return new, baseline, Variant("control", environment=baseline.environment)


@contextmanager
def interleaved_rounds(
    workload: Workload, checkpoint: Path, variants: Sequence[Variant], time_limit: float = 60.0
) -> Iterator[InterleavedRounds]:
    """Hold the machine lock and start the processes of all variants, which are ended at the end of the block.

    Each runs a first turn, which isn't measured. The workload's iterations and warm-up steps are set to those of a
    turn, which may take `time_limit` seconds.
    """
    rounds = InterleavedRounds(replace(workload, warm_up=WARM_UP_STEPS, iterations=STEPS), variants)
    with ExitStack() as stack:
        stack.enter_context(machine_lock())
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="starpullm-turns-"))
        for variant in variants:
            variant.environment.setdefault("STARPU_HOME", os.environ.get("STARPU_HOME", directory))
            variant.start(rounds.workload, checkpoint, time_limit, stack)
            variant.first = variant.ask("first")
        rounds.measure_peaks()
        yield rounds
