"""Instruments around a real training: nothing is found in it, no bit is moved, and where they can't serve they say so.

Collected by pytest; that they find what is wrong is in native/tests/instrument, on kernels that do it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.checks.execution_order import execution_order
from starpullm.checks.observer import Observer
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import tensor_digest
from starpullm.instruments import Instruments

from .children import TWO_CORES, attempt, run_function

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


def digests(checkpoint: str, partition: str, reduction: str, instruments: dict[str, Any] | None) -> Any:
    with Runtime(partition) as runtime, new_trainer(runtime, checkpoint, instruments, reduction) as trainer:
        for number in range(STEPS):
            trainer.submit(*batch(trainer, number))
        tensors = {
            f"{group}/{name}/{layer}": tensor_digest(trainer.tensor(group, name, layer))
            for group, name, layer in execution_order(trainer.config.num_layers)
        }
        return tensors, [] if instruments is None else [str(finding) for finding in Observer(trainer).findings()]


@pytest.mark.parametrize("reduction", ["ordered", "tree"])
def test_no_bit_is_moved_and_nothing_found(tiny_checkpoint: Path, reduction: str) -> None:
    plain, _ = run_function(digests, tiny_checkpoint, "1x1", reduction, None)
    assert len(plain) > 100
    audit, poison, delays = {"audit": True}, {"poison": True}, {"max_delay_us": 300, "delay_seed": 5}
    for partition, instruments in [
        ("1x1", audit),
        ("1x1", {**audit, **poison, **delays}),
        ("1x2", poison),
        ("2x1", {**poison, **delays}),
    ]:
        found, findings = run_function(
            digests, tiny_checkpoint, partition, reduction, instruments, environment=TWO_CORES
        )
        assert findings == [], instruments
        assert found == plain, instruments


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


def read_and_save(checkpoint: str, directory: str) -> Any:
    """What the application does to buffers that are closed to all but tasks."""
    with Runtime("1x1") as runtime, new_trainer(runtime, checkpoint, {"audit": True}) as trainer:
        trainer.submit(*batch(trainer, 0))
        in_flight = trainer.tensor("params", "wte")
        trainer.evaluate(*batch(trainer, 1))
        trainer.probabilities(batch(trainer, 2)[0], 0, 0)
        trainer.save_checkpoint(Path(directory, "saved.bin"))
        refused = attempt(trainer.save_state, directory)
        trainer.step(*batch(trainer, 3))
        findings = [str(finding) for finding in Observer(trainer).findings()]
        with Trainer(
            runtime, Path(directory, "saved.bin"), batch_size=BATCH, seq_len=LENGTH, keep_activations=True
        ) as again:
            same = bool(np.array_equal(in_flight, again.tensor("params", "wte")))
    return findings, same, refused


def test_the_application_reads_and_saves_an_audited_model(tiny_checkpoint: Path, tmp_path: Path) -> None:
    findings, same, refused = run_function(read_and_save, tiny_checkpoint, tmp_path)
    assert findings == []
    assert same
    assert refused["raised"] == "StateError"
    assert "audited" in refused["text"]


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
