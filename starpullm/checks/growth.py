"""Memory doesn't grow with steps, trainers and runtimes. One record is enough: no leak depends on it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress

from starpullm.binding import allocations
from starpullm.binding.library import find_library
from starpullm.checks.cases import Case, SuiteOptions, find_record
from starpullm.checks.check import Check, Needs, StandaloneCheck, Where, check
from starpullm.checks.check_context import CheckContext, environment
from starpullm.checks.leaks import OBJECTS_KEPT_EARLY, find_growth
from starpullm.checks.observer import Observer
from starpullm.checks.result import Result
from starpullm.checks.training import STEPS, local_batch, new_trainer, traced_trainer
from starpullm.errors import InvalidArgumentError, OutOfMemoryError, RuntimeFailureError
from starpullm.machine import machine_info
from starpullm.runtime import Runtime

_RECORDS = ("tiny", "odd", "small", "deep")

_PLACES = (("1x1", "eager"), ("2x1", "random"), ("1x2", "lws"), ("2x1", "prio"), ("1x2", "dmda"), ("1x1", "ws"))
"""Partitions and schedulers of runtimes."""


class _Growth(Check):
    """Compare what repetitions allocate with what of it is freed."""

    family, unit = "memory", "allocations"
    cannot_see = "a leak of one allocation a thread; less than one a repetition in StarPU or MPI"
    without_cases = f"the ranks divide the batch of none of the records {', '.join(_RECORDS)}"

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a record whose batch the ranks divide, and two sub-batches where that works; over ranks also redux."""
        for record in _RECORDS:
            own, rest = divmod(find_record(record).batch_size, ranks)
            if rest == 0:
                for reduction in ("ordered", "redux")[: min(ranks, 2)]:
                    yield Case(record, sub_batches=1 + (own % 2 == 0), reduction=reduction, seed=options.seed)
                return


@check
class GrowthOverRuntimes(_Growth, StandaloneCheck):
    """Compare what runtimes allocate, also those that are refused, with what of it is freed when they are closed."""

    claim = "closed and refused runtimes leave nothing allocated"
    fault = "runtimes leave memory"
    needs = Needs(ranks=(1, 1), counts_allocations=True)

    def run(self, context: object, case: Case) -> Result:
        """Start and close runtimes, in a process that has none."""
        places = [place for place in _PLACES if machine_info().starpu_max_contexts or place[0] != "1x2"]

        def repeat(count: int) -> None:
            for _ in range(count):
                for place in places:
                    Runtime(*place).close()
                _refuse("1x1", "nothing")  # there is no such scheduler
                _refuse("100000x1", "eager")

        options = {"warm_up": 2, "repetitions": 10, "renewals": 1, "objects_kept": OBJECTS_KEPT_EARLY}
        with environment(HWLOC_SYNTHETIC="numa:1 core:2 pu:1"):
            return self.result(**find_growth("times all runtimes", repeat, **options))


@check
class GrowthOverSteps(_Growth):
    """Compare what traced steps allocate with what of it is freed; over ranks, each rank has a result.

    The traces are longer than one block of the recorder, and are cleared.
    """

    claim = "memory doesn't grow with the number of steps"
    fault = "steps leave memory"
    needs = Needs(counts_allocations=True)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Run 100 steps; over ranks 20, which take as long."""
        steps = 100 if context.runtime.ranks == 1 else 20
        with traced_trainer(context, case) as trainer:

            def repeat(count: int) -> None:
                for number in range(count):
                    trainer.submit(*local_batch(trainer, case.seed, number))
                trainer.wait()
                trainer.clear_trace()

            found = find_growth("steps", repeat, warm_up=steps // 4, repetitions=steps, renewals=2 * STEPS)
        return self.result(**found)


@check
class GrowthOverTrainers(_Growth):
    """Compare what trainers allocate that are traced, saved and closed, with what of it is freed.

    They are closed after a step whose task after the first contribution to a gradient has no memory: no rank waits for
    another one then. On one rank, they are also closed while a saved step is under way.
    """

    claim = "closed trainers leave nothing allocated"
    fault = "trainers leave memory"
    needs = Needs(Where.ONE_WORKER, counts_allocations=True)

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield one; over ranks with redux, where StarPU-MPI keeps a list of contributions."""
        yield from list(super().cases(options, ranks))[-1:]

    def run(self, context: CheckContext, case: Case) -> Result:
        """Make 20 trainers whose step is refused, and on one rank 20 that are saved."""
        golden = find_record(case.record)  # reading a record is not what is measured
        options = {"sub_batches": case.sub_batches, "reduction": case.reduction, "trace": True}
        with new_trainer(context, golden, **options) as trainer:
            allocations.start()
            trainer.step(*local_batch(trainer, case.seed, 0))
            sites = (site for site in allocations.sites() if site.module == str(find_library()))
            place = max(sites, key=lambda site: site.made).caller  # that of tasks
            operations = (task.operation for task in trainer.trace() if task.rank == context.runtime.rank)
            number = [*operations].index("matmul_backward_weight") + 2

        def repeat(count: int) -> None:
            for _ in range(count):
                with new_trainer(context, golden, **options) as trainer, suppress(OutOfMemoryError):
                    allocations.refuse(place, number)
                    trainer.submit(*local_batch(trainer, case.seed, 0))
                    raise RuntimeFailureError("a step was submitted, expected one with a task that has no memory")
                if context.runtime.ranks > 1:
                    continue
                with (
                    tempfile.TemporaryDirectory(dir=context.directory) as states,
                    new_trainer(context, golden, **options) as trainer,
                ):
                    Observer(trainer).hold()
                    trainer.submit(*local_batch(trainer, case.seed, 0))
                    Observer(trainer).release()
                    trainer.save_state(states)

        return self.result(**find_growth("trainers", repeat, warm_up=5, repetitions=20, renewals=1))


def _refuse(partition: str, scheduler: str) -> None:
    try:
        Runtime(partition, scheduler).close()
    except InvalidArgumentError:
        return
    raise RuntimeFailureError(f"a runtime was started with {partition} and {scheduler}, expected a refusal")
