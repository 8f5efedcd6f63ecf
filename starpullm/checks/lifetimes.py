"""Complete runs, like those of ``runs.py``, of what lasts longer: shared buffers, resuming, memory over many steps."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from starpullm.checks.cases import find_record
from starpullm.checks.place import Place
from starpullm.checks.same_bits import SameBitsResult, check_same_bits
from starpullm.checks.training import STEPS, named_tensors, new_trainer, own_batch
from starpullm.files.checkpoint import read_checkpoint
from starpullm.golden.records import split_layers
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


_STATE = ("params", "m", "v")


def _submit(trainer: Trainer, seed: int, numbers: range) -> None:
    """Submit steps of generated tokens, and wait for the last one."""
    for number in numbers:
        trainer.submit(*own_batch(trainer, seed, number))
    trainer.wait()
