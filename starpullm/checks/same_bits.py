"""Several runs have the same bits: in any place, and with delays in their tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from starpullm.checks.bits import compare_bits
from starpullm.checks.cases import PROMISES, REPRODUCIBLE, Case, Promise, SuiteOptions, record_cases
from starpullm.checks.check import Arrays, Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.dependencies.observed_order import ObservedOrder
from starpullm.checks.result import Finding, Outcome, Result
from starpullm.checks.training import case_trainer, local_batch, named_tensors, trace_steps, traced_trainer
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.instruments import Instruments
from starpullm.options import RuntimeConfiguration
from starpullm.trace import Trace

MAX_DELAY_US = 200
"""For perturbed runs: longer than most tasks of the small records, so that delays decide which of them run together."""

PERTURBED_RECORDS = 2
"""Number of records that are run with delays; the runs are many, one for each scheduler."""

_STATE = ("params", "m", "v")


class SameBits(Check):
    """Compare the tensors of all runs with those of the first one, bit for bit."""

    unit = "tensors"

    def together(self, parts: Mapping[str, Arrays]) -> Result:
        """Return the verdict on the tensors of runs, by names that say how they ran."""
        (first, expected), *others = parts.items()
        findings: list[Finding] = []
        facts: dict[str, Any] = {}
        for run, tensors in others:
            if set(tensors) != set(expected):
                raise InvalidArgumentError(f"{run}: found tensors {sorted(tensors)}, expected {sorted(expected)}")
            for tensor, values in expected.items():
                difference = compare_bits(values, tensors[tensor])
                if difference:
                    findings.append(Finding(f"{tensor} of {run}, compared with {first}", difference.rows()))
                    facts = facts or difference.facts()
        compared = len(expected) * len(others)
        return self.result(compared=compared, findings=findings, note=f"{len(parts)} runs", runs=list(parts), **facts)


@check
class BitStability(SameBits):
    """Compare the gradients of all partitions, schedulers and ranks; of ``ordered`` also of all numbers of sub-batches.

    Several ranks are also compared with one process that has the sub-batches of all of them.
    """

    family = "reduction"
    claim = "gradients have the same bits on all placements and ranks"
    fault = "gradients have other bits on another placement"
    cannot_see = "a mistake that all placements share (parity)"
    needs = Needs(Where.TOGETHER, promises=REPRODUCIBLE)

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the numbers of sub-batches whose bits must be equal."""
        for record in options.records:
            counts = options.sub_batches(record, ranks)
            for reduction in options.reductions:
                if PROMISES[reduction] is Promise.BITWISE and counts:
                    yield Case(record, reduction=reduction, seed=options.seed, counts=counts)
                elif PROMISES[reduction] is Promise.FIXED_BITS:
                    shared = [count for count in counts if ranks * count > 1]
                    yield from (Case(record, reduction=reduction, seed=options.seed, counts=[of]) for of in shared)

    def parts(
        self, options: SuiteOptions, ranks: int, case: Case, placement: RuntimeConfiguration | None
    ) -> Sequence[tuple[RuntimeConfiguration, Case]]:
        """Return all placements with all numbers of sub-batches."""
        places = [(place, count) for place in options.configurations(ranks) for count in case.counts]
        if ranks > 1:
            places += [(place, ranks * count) for place in options.configurations() for count in case.counts]
        return [(place, case._replace(sub_batches=count, counts=())) for place, count in places]

    def run(self, place: CheckContext, case: Case) -> Arrays:
        """Return all gradients of the second step: those of the first must not be part of them."""
        with case_trainer(place, case) as trainer:
            for number in range(2):
                trainer.step(*local_batch(trainer, case.seed, number))
            return named_tensors(trainer, "grads")


@check
class Perturbation(SameBits):
    """Compare a run with random delays in its tasks with a plain one on 1x1 eager.

    A test's name has its scheduler and the seed of its delays, so ``-k`` or ``--lf`` with the same ``--starpullm-seed``
    repeats it. Both runs must also keep the required order.
    """

    family = "dependencies"
    claim = "neither the scheduler nor delays of tasks change a bit"
    fault = "delays change bits"
    cannot_see = "other delays: another seed is another attempt"
    needs = Needs(Where.TOGETHER, ranks=(1, 1), promises=REPRODUCIBLE)

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the first records, with the largest number of sub-batches, and a seed of delays for each reduction."""
        reductions = [name for name in options.reductions if PROMISES[name] in REPRODUCIBLE]
        records = options.records[:PERTURBED_RECORDS]
        for case in record_cases(options, ranks, self.needs.promises, records=records):
            if case.sub_batches == max(options.sub_batches(case.record, ranks)):
                yield case._replace(delays=options.seed + reductions.index(case.reduction))

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[RuntimeConfiguration | None]:
        """Return one for each scheduler."""
        return options.perturbing_configurations

    def parts(
        self, options: SuiteOptions, ranks: int, case: Case, placement: RuntimeConfiguration | None
    ) -> Sequence[tuple[RuntimeConfiguration, Case]]:
        """Return the plain run and the one with delays."""
        assert placement is not None
        return [(RuntimeConfiguration("1x1", "eager"), case._replace(delays=None)), (placement, case)]

    def run(self, place: CheckContext, case: Case) -> Result | Arrays:
        """Return the final tensors, or the result on the order if it wasn't kept."""
        instruments = None
        if case.delays is not None:
            instruments = Instruments(max_delay_us=MAX_DELAY_US, delay_seed=case.delays)
        with traced_trainer(place, case, instruments=instruments) as trainer:
            trace = trace_steps(trainer, case.seed)
            tensors = named_tensors(trainer, "grads", *_STATE)
        if case.delays is not None:
            require_delays(trace, MAX_DELAY_US)
        order = ObservedOrder().judge(trace)
        return tensors if order.outcome is Outcome.PASSED else order


def require_delays(trace: Trace, max_delay_us: int) -> None:
    """Refuse a run whose tasks weren't delayed: its bits show nothing.

    A task's delay is part of its time, and half of the delays are at least half of the longest one.
    """
    tasks = trace.tasks[trace.tasks["worker"] >= 0]
    delayed = int(np.sum(tasks["end_ns"] - tasks["start_ns"] >= max_delay_us * 500))
    if delayed * 4 < len(tasks) or not len(tasks):
        raise RuntimeFailureError(
            f"delays: {delayed} of {len(tasks)} tasks took {max_delay_us / 2:g} µs or longer, expected at least a "
            f"quarter of them with delays of up to {max_delay_us} µs"
        )
