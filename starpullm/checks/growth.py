"""Memory doesn't grow with steps, trainers and runtimes. One record is enough: no leak depends on it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from starpullm.checks.cases import Case, SuiteOptions, find_record
from starpullm.checks.check import Check, Needs, StandaloneCheck, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.leaks import OBJECTS_KEPT_EARLY, find_growth
from starpullm.checks.observer import Observer
from starpullm.checks.result import Result
from starpullm.checks.training import STEPS, local_batch, new_trainer, traced_trainer
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.runtime import Runtime

_RECORDS = ("tiny", "odd", "small", "deep")


class _Growth(Check):
    """Compare what repetitions allocate with what of it is freed."""

    family, unit = "memory", "allocations"
    cannot_see = "a leak of one allocation a thread; less than one a repetition in StarPU or MPI"
    without_cases = f"the ranks divide the batch of none of the records {', '.join(_RECORDS)}"

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a record whose batch the ranks divide, and two sub-batches where that works."""
        for record in _RECORDS:
            own, rest = divmod(find_record(record).batch_size, ranks)
            if rest == 0:
                yield Case(record, sub_batches=1 + (own % 2 == 0), reduction="ordered", seed=options.seed)
                return


@check
class GrowthOverRuntimes(_Growth, StandaloneCheck):
    """Compare what runtimes allocate, also those that are refused, with what of it is freed when they are closed."""

    claim = "closed and refused runtimes leave nothing allocated"
    fault = "runtimes leave memory"
    needs = Needs(ranks=(1, 1), counts_allocations=True)

    def run(self, context: object, case: Case) -> Result:
        """Start and close runtimes, in a process that has none."""

        def repeat(count: int) -> None:
            for _ in range(count):
                Runtime("1x1", "eager").close()
                _refuse("1x1", "nothing")  # there is no such scheduler
                _refuse("100000x1", "eager")

        growth = find_growth("runtimes", repeat, warm_up=2, repetitions=10, renewals=1, objects_kept=OBJECTS_KEPT_EARLY)
        return self.result(**growth)


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

    They are closed while the step is under way that has been saved.
    """

    claim = "closed trainers leave nothing allocated"
    fault = "trainers leave memory"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1), counts_allocations=True)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Make 20 trainers."""
        golden = find_record(case.record)  # reading a record is not what is measured

        def repeat(count: int) -> None:
            for _ in range(count):
                with (
                    tempfile.TemporaryDirectory(dir=context.directory) as states,
                    new_trainer(context, golden, sub_batches=case.sub_batches, trace=True) as trainer,
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
