"""StarPU refuses a task in the middle of a step: the step fails with a sentence, and everything can be closed.

Collected by pytest; the runs are in child processes, which preload what refuses. Over ranks: tests/ranks.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from starpullm import Runtime, Trainer
from starpullm.checks.observer import Observer
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record

from .children import TWO_CORES, attempt, run_function

TINY = shipped_record("tiny")


def refuse(checkpoint: str, shim: str, held: bool, number: int) -> dict[str, Any]:
    """Submit a step of which StarPU refuses a task."""
    refuse_call = ctypes.CDLL(shim).refuse_call
    refuse_call.argtypes, refuse_call.restype = [ctypes.c_long], ctypes.c_long
    batch = generate_tokens(TINY.seed, 0, TINY.batch_size, TINY.seq_len, TINY.model.vocab_size)
    with Runtime() as runtime:
        options: dict[str, Any] = {
            "batch_size": TINY.batch_size,
            "seq_len": TINY.seq_len,
            "sub_batches": 2,
            "trace": True,
        }
        with Trainer(runtime, checkpoint, **options) as trainer:
            observer = Observer(trainer)
            if held:
                observer.hold()
            refuse_call(number)
            told: dict[str, Any] = {"submission": attempt(trainer.submit, *batch), "not_reached": refuse_call(0)}
            if held:
                told["edges"] = observer.release().tolist()
            told["next"] = attempt(trainer.submit, *batch)
        with Trainer(runtime, checkpoint, **options) as another:
            told["another"] = float(another.step(*batch))
    return told


@pytest.mark.timeout(120)
@pytest.mark.parametrize("held", [False, True])
def test_a_refused_task_breaks_its_trainer_alone(tiny_checkpoint: Path, refusing_starpu: Path, held: bool) -> None:
    """Memory that is freed is overwritten, so that using it later shows."""
    environment = {**TWO_CORES, "LD_PRELOAD": str(refusing_starpu), "MALLOC_PERTURB_": "165"}
    told = run_function(refuse, tiny_checkpoint, refusing_starpu, held, 40, environment=environment)
    assert told["not_reached"] == 0
    assert told["submission"]["raised"] == "RuntimeFailureError"
    assert "StarPU refused a task of " in told["submission"]["text"]
    assert "a submission failed half way" in told["next"]["text"]
    assert abs(told["another"] - TINY.steps[0].mean_loss) < 1e-6
    if held:
        tasks = {task for edge in told["edges"] for task in edge}
        assert set(range(39)) >= {task for task in tasks if task >= 0} > {0}
