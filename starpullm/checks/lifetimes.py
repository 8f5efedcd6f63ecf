"""Complete runs, like those of ``runs.py``, of what lasts longer: shared buffers, resuming, memory over many steps."""

from __future__ import annotations

import tempfile

from starpullm.checks.cases import find_record
from starpullm.checks.memory import GrowthResult, check_growth, check_operations
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place, Workplace
from starpullm.checks.training import STEPS, new_trainer, own_batch
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer


def step_growth(
    place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, steps: int | None = None
) -> GrowthResult:
    """Compare what traced steps allocate with what of it is freed; over ranks, each rank has a result.

    The traces are longer than one block of the recorder, and are cleared. Without a number of steps there are 100, over
    ranks 20, which take as long.
    """
    steps = steps or (100 if place.runtime.ranks == 1 else 20)
    golden = find_record(record)
    options = {"sub_batches": sub_batches, "reduction": reduction, "keep_activations": False, "trace": True}
    with new_trainer(place, golden, **options) as trainer:

        def repeat(count: int) -> None:
            _submit(trainer, seed, range(count))
            trainer.clear_trace()

        return check_growth(
            "steps",
            repeat,
            warm_up=steps // 4,
            repetitions=steps,
            renewals=2 * STEPS,
        )


def trainer_growth(
    place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, trainers: int = 20
) -> GrowthResult:
    """Compare what trainers allocate that are traced, saved and closed, with what of it is freed.

    They are closed while the step is under way that has been saved.
    """
    golden = find_record(record)

    def repeat(count: int) -> None:
        for _ in range(count):
            with (
                tempfile.TemporaryDirectory(dir=place.directory) as states,
                new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction, trace=True) as trainer,
            ):
                if place.runtime.ranks == 1:
                    Observer(trainer).hold()
                trainer.submit(*own_batch(trainer, seed, 0))
                if place.runtime.ranks == 1:
                    Observer(trainer).release()
                    trainer.save_state(states)

    return check_growth("trainers", repeat, warm_up=trainers // 4, repetitions=trainers, renewals=1)


def runtime_growth(workplace: Workplace) -> GrowthResult:
    """Compare what runtimes allocate, also those that are refused, with what of it is freed when they are closed."""
    del workplace

    def refuse(partition: str, scheduler: str) -> None:
        try:
            Runtime(partition, scheduler).close()
        except InvalidArgumentError:
            return
        raise RuntimeFailureError(f"a runtime was started with {partition} and {scheduler}, expected a refusal")

    return check_operations(
        {
            "a runtime": lambda: Runtime("1x1", "eager").close(),
            "a runtime with a scheduler that is not there": lambda: refuse("1x1", "nothing"),
            "a runtime with too many workers": lambda: refuse("100000x1", "eager"),
        },
        warm_up=2,
        renewals=1,
    )


_STATE = ("params", "m", "v")


def _submit(trainer: Trainer, seed: int, numbers: range) -> None:
    """Submit steps of generated tokens, and wait for the last one."""
    for number in numbers:
        trainer.submit(*own_batch(trainer, seed, number))
    trainer.wait()
