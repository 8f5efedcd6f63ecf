"""Checks of what lasts: buffers that are used again, runs that are saved and resumed, memory over many steps.

As those of ``runs.py``: ``isolation.py`` calls them in a child process, programs with a ``Place`` of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.memory import GrowthResult, check_growth
from starpullm.checks.parity import execution_order
from starpullm.checks.reduction import BitStabilityResult, Promise, check_bit_stability
from starpullm.checks.runs import STEPS, Place, find_record, new_trainer, own_batch
from starpullm.golden.records import GoldenRecord
from starpullm.trainer import Trainer

__all__ = ["Growth", "resumed", "shared_buffers", "step_growth", "trainer_growth"]


Growth = Callable[..., GrowthResult]
"""``step_growth`` or ``trainer_growth``."""


def shared_buffers(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> BitStabilityResult:
    """Compare the bits of a run whose blocks share buffers, as trainings do, with those of one that keeps them all."""
    golden = find_record(record)
    runs = {}
    for name, keep_activations in (("buffers of their own", True), ("shared buffers", False)):
        with new_trainer(
            place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=keep_activations
        ) as trainer:
            _submit(trainer, seed, range(STEPS))
            runs[name] = _tensors(trainer, golden, ("grads", *_STATE))
    return check_bit_stability(runs, Promise.FIXED_BITS)


def resumed(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> BitStabilityResult:
    """Compare the bits of a run that was saved, closed and resumed half way with those of one that wasn't."""
    golden = find_record(record)
    with tempfile.TemporaryDirectory(dir=place.directory) as states:
        with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
            _submit(trainer, seed, range(STEPS))
            not_stopped = _tensors(trainer, golden, _STATE)
        with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
            _submit(trainer, seed, range(STEPS // 2))
            trainer.save_state(states)
            trainer.wait_saved()
        with new_trainer(place, golden, resume=Path(states), sub_batches=sub_batches, reduction=reduction) as trainer:
            _submit(trainer, seed, range(STEPS // 2, STEPS))
            after_resuming = _tensors(trainer, golden, _STATE)
    return check_bit_stability({"not stopped": not_stopped, "resumed": after_resuming}, Promise.FIXED_BITS)


def step_growth(
    place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, steps: int = 1000
) -> GrowthResult:
    """Compare resident memory before and after many steps."""
    golden = find_record(record)
    with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False) as trainer:
        return check_growth(
            "steps", lambda count: _submit(trainer, seed, range(count)), warm_up=steps // 20, repetitions=steps
        )


def trainer_growth(
    place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, trainers: int = 20
) -> GrowthResult:
    """Compare resident memory before and after trainers that are opened, make a step and are closed."""
    golden = find_record(record)

    def repeat(count: int) -> None:
        for _ in range(count):
            with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
                _submit(trainer, seed, range(1))

    return check_growth("trainers", repeat, warm_up=trainers // 4, repetitions=trainers)


_STATE = ("params", "m", "v")


def _submit(trainer: Trainer, seed: int, numbers: range) -> None:
    """Submit steps of generated tokens, and wait for the last."""
    for number in numbers:
        trainer.submit(*own_batch(trainer, seed, number))
    trainer.wait()


def _tensors(trainer: Trainer, record: GoldenRecord, groups: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """Return tensors by names like ``qkvw[1]``, with the group before if there are several."""
    prefixes = {group: f"{group}/" if len(groups) > 1 else "" for group in groups}
    return {
        prefixes[group] + (name if layer is None else f"{name}[{layer}]"): trainer.tensor(group, name, layer)
        for group, name, layer in execution_order(record.model.num_layers)
        if group in groups
    }
