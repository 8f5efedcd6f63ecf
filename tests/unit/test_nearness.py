"""What the comparison with a debug state makes of runs, at both sides of each tolerance.

tests/native/test_debug_state.py has real runs, tests/unit/test_debug_state.py the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks import debug_state
from starpullm.checks.debug_state import STARTER_PACK_LOSSES, DebugStateResult, check_debug_state, expected_losses
from starpullm.checks.result import Outcome
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.files.debug_state import DebugState
from starpullm.golden.records import GoldenRecord

from .strict_trainer import StrictTrainer, runtime

Fault = Callable[[StrictTrainer], None]
Run = Callable[..., DebugStateResult]


@pytest.fixture(scope="module")
def made(strict: tuple[GoldenRecord, Path]) -> tuple[DebugState, list[float]]:
    """The state of a first step, and the losses of three."""
    record, checkpoint = strict
    sizes: dict[str, Any] = {"batch_size": record.batch_size, "seq_len": record.seq_len}
    batch = generate_tokens(1, 0, **sizes, vocab_size=record.model.vocab_size)
    trainer = StrictTrainer(runtime(), checkpoint, **sizes, learning_rate=1e-4, weight_decay=0.01)
    losses = [float(trainer.step(*batch))]
    gradients = {name: trainer.tensor("grads", name) for name in trainer.tensor_names("grads")}
    logits = trainer.tensor("activations", "logits")[..., : record.model.vocab_size]
    state = DebugState(record.model, *batch, logits, losses[0], gradients)
    return state, losses + [float(trainer.step(*batch)) for _ in range(2)]


@pytest.fixture
def run(
    made: tuple[DebugState, list[float]], strict: tuple[GoldenRecord, Path], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return a function that runs the check on a trainer with a fault."""

    def run_with(fault: Fault | None = None, of: Any = None, **options: Any) -> DebugStateResult:
        monkeypatch.setattr(debug_state, "Trainer", partial(StrictTrainer, fault=fault))
        return check_debug_state(made[0], runtime(**(of or {})), strict[1], **options)

    return run_with


def changed(group: str, name: str, index: tuple[int, ...], by: float) -> Fault:
    def fault(trainer: StrictTrainer) -> None:
        tensor = getattr(trainer.model, group)[name]
        tensor[index] = np.float32(float(tensor[index]) + by)

    return fault


def test_the_same_step_is_near(run: Run, made: tuple[DebugState, list[float]]) -> None:
    done: list[None] = []
    result = run(losses=made[1], progress=lambda: done.append(None))
    assert (result.outcome, result.compared, result.measured, len(done)) == (Outcome.PASSED, 20, 0, 3)
    names = [tensor.tensor for tensor in result.tensors]
    assert names[:3] == ["logits", "loss", "grads/wte"]
    assert names[-2:] == ["loss of step 1", "loss of step 2"]
    assert all(tensor.difference == 0 for tensor in result.tensors)
    assert result.describe() == [
        "debug state: passed: 20 of 20 tensors are within llm.c's tolerances; bits weren't compared"
    ]
    assert {tensor.tensor: tensor.elements for tensor in result.tensors}["logits"] == made[0].logits.size
    assert (result.partition, result.ranks, result.sub_batches, result.reduction) == ("1x1", 1, 1, "ordered")


def test_without_other_losses_one_step_is_made(run: Run) -> None:
    result = run(sub_batches=2, reduction="tree")
    assert (result.compared, result.sub_batches, result.reduction) == (18, 2, "tree")


@pytest.mark.parametrize(
    ("group", "name", "index", "by", "outside"),
    [
        ("activations", "logits", (1, 2, 3), 0.0099, None),
        ("activations", "logits", (1, 2, 3), -0.0101, "logits: 1 of 976 outside 0.01; the farthest, [1, 2, 3]: "),
        ("grads", "fcw[1]", (5, 6), 0.0199, None),
        ("grads", "fcw[1]", (5, 6), 0.0201, "grads/fcw: 1 of 2048 outside 0.02; the farthest, [1, 5, 6]: "),
        ("grads", "lnfb", (7,), math.nan, "grads/lnfb: 1 of 16 outside 0.02; the farthest, [7]: expected "),
        # The padding: 61 of 64 rows count.
        ("activations", "logits", (0, 0, 61), 9.0, None),
        ("activations", "logits", (0, 0, 60), 9.0, "logits: 1 of 976 outside"),
        ("grads", "wte", (61, 0), 9.0, None),
        ("grads", "wte", (60, 0), 9.0, "grads/wte: 1 of 976 outside"),
    ],
)
def test_an_element_is_outside_beyond_the_tolerance(
    run: Run, group: str, name: str, index: tuple[int, ...], by: float, outside: str | None
) -> None:
    result = run(changed(group, name, index, by))
    lines = list(result.detail_lines())
    assert (result.outcome is Outcome.FAILED, result.measured) == (outside is not None, len(lines))
    assert len(lines) == (outside is not None)
    assert all(line.startswith(str(outside)) for line in lines)


def test_the_farthest_element_is_shown(run: Run, made: tuple[DebugState, list[float]]) -> None:
    def fault(trainer: StrictTrainer) -> None:
        trainer.model.grads["lnfb"][2] += np.float32(0.5)
        trainer.model.grads["lnfb"][9] -= np.float32(1.5)

    (line,) = run(fault).detail_lines()
    expected = float(made[0].gradients["lnfb"][9])
    found = float(np.float32(made[0].gradients["lnfb"][9]) - np.float32(1.5))
    assert line == (
        f"grads/lnfb: 2 of 16 outside 0.02; the farthest, [9]: expected {expected:.9g}, found {found:.9g}, 1.5 off"
    )


@pytest.mark.parametrize(("by", "holds"), [(0.009, True), (0.011, False)])
def test_losses_are_compared_step_by_step(
    run: Run, made: tuple[DebugState, list[float]], by: float, holds: bool
) -> None:
    result = run(losses=[made[1][0], made[1][1] + by, made[1][2]])
    assert [tensor.tensor for tensor in result.tensors if tensor.outside] == ([] if holds else ["loss of step 1"])
    assert result.finding.startswith(f"{20 - (not holds)} of 20 tensors")
    assert all("farthest, expected" in line for line in result.detail_lines())  # a number has no position


def test_losses_of_the_starter_pack_are_known(made: tuple[DebugState, list[float]]) -> None:
    state = made[0]
    assert expected_losses(state) == (state.loss,)
    pack = DebugState(state.config, state.inputs, state.targets, state.logits, 5.270007133483887, state.gradients)
    assert expected_losses(pack) == STARTER_PACK_LOSSES
    assert len(STARTER_PACK_LOSSES) == 10


def test_ranks_have_to_divide_the_batch(run: Run) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^a batch of 2 can't be spread over 3 ranks$"):
        run(of={"ranks": 3})
