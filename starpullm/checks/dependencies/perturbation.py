"""Delays in tasks change no bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from starpullm.checks.cases import PROMISES, REPRODUCIBLE, Case, SuiteOptions, record_cases
from starpullm.checks.check import Arrays, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.dependencies.observed_order import ObservedOrder
from starpullm.checks.result import Outcome, Result
from starpullm.checks.same_bits import SameBits
from starpullm.checks.training import named_tensors, trace_steps, traced_trainer
from starpullm.errors import RuntimeFailureError
from starpullm.instruments import Instruments
from starpullm.options import RuntimeConfiguration
from starpullm.trace import Trace

MAX_DELAY_US = 200
"""For perturbed runs: longer than most tasks of the small records, so that delays decide which of them run together."""

PERTURBED_RECORDS = 2
"""Number of records that are run with delays; the runs are many, one for each scheduler."""


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
                yield replace(case, delays=options.seed + reductions.index(case.reduction))

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[RuntimeConfiguration | None]:
        """Return one for each scheduler."""
        return options.perturbing_configurations

    def parts(
        self, options: SuiteOptions, ranks: int, case: Case, placement: RuntimeConfiguration | None
    ) -> Sequence[tuple[RuntimeConfiguration, Case]]:
        """Return the plain run and the one with delays."""
        assert placement is not None
        return [(RuntimeConfiguration("1x1", "eager"), replace(case, delays=None)), (placement, case)]

    def run(self, context: CheckContext, case: Case) -> Result | Arrays:
        """Return the final tensors, or the result on the order if it wasn't kept."""
        instruments = None
        if case.delays is not None:
            instruments = Instruments(max_delay_us=MAX_DELAY_US, delay_seed=case.delays)
        with traced_trainer(context, case, instruments=instruments) as trainer:
            trace = trace_steps(trainer, case.seed)
            tensors = named_tensors(trainer, "grads", "params", "m", "v")
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
