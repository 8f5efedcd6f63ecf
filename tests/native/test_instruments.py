"""Instruments around a real training: nothing is found in it, and where they can't serve they say so.

That they find what is wrong is in native/tests/instrument, on kernels that do it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from starpullm import Runtime, Trainer
from starpullm.checks.observer import Observer
from starpullm.data.generator import generate_tokens
from starpullm.instruments import Instruments

from .children import run_function

BATCH, LENGTH, STEPS = 4, 8, 3


def new_trainer(
    runtime: Runtime, checkpoint: str, instruments: dict[str, Any] | None, reduction: str = "ordered", **options: Any
) -> Trainer:
    return Trainer(
        runtime,
        checkpoint,
        batch_size=BATCH,
        seq_len=LENGTH,
        sub_batches=2,
        reduction=reduction,
        **{"keep_activations": True, "trace": True, **options},
        instruments=None if instruments is None else Instruments(**instruments),
    )


def batch(trainer: Trainer, number: int) -> Any:
    return generate_tokens(1, number, BATCH, LENGTH, trainer.config.vocab_size)


def audited_beside_held(checkpoint: str, path: str) -> Any:
    """Train, read and save an audited trainer while another one holds its tasks."""
    with Runtime("1x1") as runtime, new_trainer(runtime, checkpoint, None) as held:
        Observer(held).hold()
        loss = held.submit(*batch(held, 0))
        with new_trainer(runtime, checkpoint, {"audit": True}) as audited:
            audited.submit(*batch(audited, 0))
            audited.submit(*batch(audited, 1))
            audited.tensor("params", "wte")
            audited.save_checkpoint(path)
            findings = [str(finding) for finding in Observer(audited).findings()]
        was_held = not loss.ready
        Observer(held).release()
        return was_held, float(loss.result()) > 0, findings


def test_an_audit_waits_for_its_own_tasks(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """For those of another trainer, which nothing lets go, it would wait for ever."""
    assert run_function(audited_beside_held, tiny_checkpoint, tmp_path / "saved.bin") == [True, True, []]


def delayed(checkpoint: str, seed: int) -> Any:
    with (
        Runtime("1x1") as runtime,
        new_trainer(runtime, checkpoint, {"max_delay_us": 3000, "delay_seed": seed}) as trainer,
    ):
        trainer.submit(*batch(trainer, 0))
        tasks = trainer.trace().tasks
        return (tasks["end_ns"] - tasks["start_ns"]).tolist()


def test_a_seed_gives_the_same_delays_again(tiny_checkpoint: Path) -> None:
    first, again, other = (np.array(run_function(delayed, tiny_checkpoint, seed)) for seed in (3, 3, 4))
    # A sleep is never shorter than asked for, and longer only now and then: half of the tasks agree closely.
    assert np.median(np.abs(first - again)) < 0.3e6
    assert np.median(np.abs(first - other)) > 0.5e6
    assert first.min() < 0.5e6
    assert first.max() > 2.5e6
