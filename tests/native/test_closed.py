"""After close every call of a trainer says so, and what needs only Python's part stays possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm import Runtime, Trainer
from starpullm.checks.observer import Observer
from starpullm.errors import StateError

from .children import Reply, assert_refused, attempt, run_function
from .tiny import TINY, B, T, batch

TRAINER_CALLS: dict[str, Callable[[Trainer, str], object]] = {
    "submit": lambda trainer, path: trainer.submit(*batch()),
    "step": lambda trainer, path: trainer.step(*batch()),
    "evaluate": lambda trainer, path: trainer.evaluate(*batch()),
    "probabilities": lambda trainer, path: trainer.probabilities(batch()[0], 0, 0),
    "wait": lambda trainer, path: trainer.wait(),
    "tensor": lambda trainer, path: trainer.tensor("params", "wte"),
    "save_checkpoint": lambda trainer, path: trainer.save_checkpoint(path),
    "claim_directory": lambda trainer, path: trainer.claim_directory(path),
    "save_state": lambda trainer, path: trainer.save_state(path),
    "wait_saved": lambda trainer, path: trainer.wait_saved(),
    "trace": lambda trainer, path: trainer.trace(),
    "clear_trace": lambda trainer, path: trainer.clear_trace(),
    "findings": lambda trainer, path: Observer(trainer).findings(),
    "counts": lambda trainer, path: Observer(trainer).counts(),
    "hold": lambda trainer, path: Observer(trainer).hold(),
    "release": lambda trainer, path: Observer(trainer).release(),
}

# These need only what the trainer keeps in Python.
GROUPS = {"params", "grads", "m", "v", "activations", "activation_grads"}
ALWAYS_POSSIBLE = {"close", "closed", "tensor_names", "layers_of", "kept_sequences"} | GROUPS


def call_after_close(checkpoint: str, saved: str) -> dict[str, Reply]:
    with Runtime() as runtime:
        trainer = Trainer(runtime, checkpoint, batch_size=B, seq_len=T, trace=True)
        loss = trainer.submit(*batch())
        trainer.close()
        replies = {name: attempt(call, trainer, saved) for name, call in TRAINER_CALLS.items()}
        replies["close"] = attempt(trainer.close)
        replies["closed"] = attempt(lambda: trainer.closed)
        replies["tensor_names"] = attempt(lambda: trainer.tensor_names("params")[0])
        replies["layers_of"] = attempt(lambda: trainer.layers_of("params", "qkvw"))
        replies["kept_sequences"] = attempt(lambda: len(trainer.kept_sequences("activations", "logits")))
        replies |= {group: attempt(lambda: len(getattr(trainer, group))) for group in GROUPS}  # noqa: B023
    replies["closing the runtime again"] = attempt(runtime.close)
    replies["the runtime's closed"] = attempt(lambda: runtime.closed)
    replies["a trainer on it"] = attempt(lambda: Trainer(runtime, checkpoint, batch_size=B, seq_len=T))
    replies["the loss"] = attempt(loss.result)
    return replies


@pytest.fixture(scope="module")
def replies_after_close(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reply]:
    saved = tmp_path_factory.mktemp("closed") / "saved.bin"
    replies = run_function(call_after_close, tiny_checkpoint, saved)
    assert not saved.exists()
    return replies


def test_every_method_of_a_trainer_and_its_observer_is_tried() -> None:
    public = {name for one in (Trainer, Observer) for name in dir(one) if not name.startswith("_")}
    assert public == set(TRAINER_CALLS) | ALWAYS_POSSIBLE


@pytest.mark.parametrize("call", TRAINER_CALLS)
def test_trainer_after_close(replies_after_close: dict[str, Reply], call: str) -> None:
    assert_refused(replies_after_close[call], StateError, "trainer", "closed", "expected", "open")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("close", "None"),
        ("closed", "True"),
        ("tensor_names", "'wte'"),
        ("layers_of", "2"),
        ("kept_sequences", "1"),
        ("closing the runtime again", "None"),
        ("the runtime's closed", "True"),
        ("the loss", repr(np.float32(TINY.steps[0].mean_loss))),
    ],
)
def test_still_possible_after_close(replies_after_close: dict[str, Reply], call: str, text: str) -> None:
    assert replies_after_close[call] == {"raised": None, "text": text, "errno": None}


def test_trainer_on_a_closed_runtime(replies_after_close: dict[str, Reply]) -> None:
    assert_refused(replies_after_close["a trainer on it"], StateError, "runtime", "closed", "expected", "open")
