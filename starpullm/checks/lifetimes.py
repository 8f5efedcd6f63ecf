"""Complete runs, like those of ``runs.py``, of what lasts longer: shared buffers, resuming, memory over many steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from starpullm.checks.cases import find_record
from starpullm.checks.memory import GrowthResult, check_growth, check_operations
from starpullm.checks.observer import Observer
from starpullm.checks.place import Place, Workplace
from starpullm.checks.same_bits import SameBitsResult, check_same_bits
from starpullm.checks.training import STEPS, named_tensors, new_trainer, own_batch
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.golden.records import split_layers
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer


def shared_buffers(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> SameBitsResult:
    """Compare the bits of a run whose blocks share buffers, as in training, with those of one with separate buffers.

    The second has one step in flight at a time. The first has three, so that its slots differ, and one is used twice.
    """
    golden = find_record(record)
    runs = {}
    for name, keep_activations, steps_in_flight in (
        ("separate buffers", True, 1),
        ("shared buffers, 3 steps in flight", False, 3),
    ):
        with new_trainer(
            place,
            golden,
            sub_batches=sub_batches,
            reduction=reduction,
            keep_activations=keep_activations,
            steps_in_flight=steps_in_flight,
        ) as trainer:
            losses = [trainer.submit(*own_batch(trainer, seed, number)) for number in range(STEPS)]
            runs[name] = {"mean_loss": np.array([loss.result() for loss in losses])}
            runs[name] |= named_tensors(trainer, "grads", *_STATE)
    return check_same_bits("shared buffers", runs)


def resumed(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> SameBitsResult:
    """Compare the bits of a run that was saved, closed and resumed half way with those of an uninterrupted run.

    It is saved while its steps are in flight. At the end its model is saved as a checkpoint, which is compared too.
    """
    golden = find_record(record)
    with tempfile.TemporaryDirectory(dir=place.directory) as states:
        with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
            _submit(trainer, seed, range(STEPS))
            uninterrupted = named_tensors(trainer, *_STATE)
            uninterrupted |= {f"checkpoint/{name}": values for name, values in named_tensors(trainer, "params").items()}
        with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
            for number in range(STEPS // 2):
                trainer.submit(*own_batch(trainer, seed, number))
            trainer.save_state(states)
            trainer.submit(*own_batch(trainer, seed, STEPS // 2))  # it runs while the state is written
            trainer.wait_saved()
        with new_trainer(place, golden, resume=Path(states), sub_batches=sub_batches, reduction=reduction) as trainer:
            _submit(trainer, seed, range(STEPS // 2, STEPS))
            resumed_tensors = named_tensors(trainer, *_STATE)
            trainer.save_checkpoint(Path(states, "model.bin"))
            saved = split_layers(read_checkpoint(Path(states, "model.bin")).parameters)
            resumed_tensors |= {f"checkpoint/{name}": values for name, values in saved}
    return check_same_bits("resumed run", {"uninterrupted": uninterrupted, "resumed": resumed_tensors})


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
