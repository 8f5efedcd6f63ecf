"""Complete runs, like those of ``runs.py``, of what lasts longer: shared buffers, resuming, memory over many steps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from starpullm.checks.interface.processes import Workplace, limited_files
from starpullm.checks.memory import GrowthResult, check_growth
from starpullm.checks.observer import Observer
from starpullm.checks.runs import STEPS, Place, find_record, named_tensors, new_trainer, own_batch
from starpullm.checks.same_bits import SameBitsResult, check_same_bits
from starpullm.errors import FileError, RuntimeFailureError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.golden.records import split_layers
from starpullm.resume import training_state
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

Growth = Callable[..., GrowthResult]
"""``step_growth`` or ``trainer_growth``."""


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
            runs[name] = {"mean_loss": np.array([loss.value for loss in losses])}
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
            trainer.wait_saved()
        with new_trainer(place, golden, resume=Path(states), sub_batches=sub_batches, reduction=reduction) as trainer:
            _submit(trainer, seed, range(STEPS // 2, STEPS))
            resumed_tensors = named_tensors(trainer, *_STATE)
            trainer.save_checkpoint(Path(states, "model.bin"))
            saved = split_layers(read_checkpoint(Path(states, "model.bin")).parameters)
            resumed_tensors |= {f"checkpoint/{name}": values for name, values in saved}
    return check_same_bits("resumed run", {"uninterrupted": uninterrupted, "resumed": resumed_tensors})


def step_growth(
    place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, steps: int = 100
) -> GrowthResult:
    """Compare what traced steps allocate with what of it is freed; over ranks, each rank has a result.

    The traces are longer than one block of the recorder, and are cleared.
    """
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
    """Compare what trainers allocate that are traced, saved, also where that fails, and closed, with what is freed."""
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
                trainer.wait()
                if place.runtime.ranks == 1:
                    _save_and_fail(trainer, Path(states))

    return check_growth("trainers", repeat, warm_up=trainers // 4, repetitions=trainers, renewals=1)


def runtime_growth(workplace: Workplace, *, runtimes: int = 10) -> GrowthResult:
    """Compare what the library allocates for runtimes with what of it is freed when they are closed."""
    del workplace

    def repeat(count: int) -> None:
        for _ in range(count):
            Runtime("1x1", "eager").close()

    return check_growth("runtimes", repeat, warm_up=2, repetitions=runtimes, renewals=1)


_STATE = ("params", "m", "v")


def _save_and_fail(trainer: Trainer, states: Path) -> None:
    """Describe a saved state; then save one, and a checkpoint, where that is not possible."""
    trainer.wait_saved()
    (file,) = training_state(states).path.iterdir()
    file.unlink()
    file.mkdir()
    trainer.save_state(states)
    _expect_failure(trainer.wait_saved)
    with limited_files(1):
        _expect_failure(lambda: trainer.save_checkpoint(states / "model.bin"))


def _expect_failure(call: Callable[[], None]) -> None:
    try:
        call()
    except FileError:
        return
    raise RuntimeFailureError("a file was saved, expected that there is no room for it")


def _submit(trainer: Trainer, seed: int, numbers: range) -> None:
    """Submit steps of generated tokens, and wait for the last one."""
    for number in numbers:
        trainer.submit(*own_batch(trainer, seed, number))
    trainer.wait()
