"""What the runs of checks do with a trainer, and that they notice one that computes something wrong.

The trainer is the plain model; real ones are in starpullm/suite and tests/native.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks import recorded_run, references
from starpullm.checks.cases import Case, find_record
from starpullm.checks.check import run_check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.dependencies.observed_order import ObservedOrder
from starpullm.checks.dependencies.perturbation import Perturbation
from starpullm.checks.parity import Parity
from starpullm.checks.reduction import DenormalGradients, GradientBounds
from starpullm.checks.result import Outcome, Result
from starpullm.checks.same_bits import BitStability
from starpullm.checks.training import STEPS, checkpoint_in, local_batch, named_tensors, new_trainer
from starpullm.data.generator import generate_tokens
from starpullm.errors import FileError, InvalidArgumentError, RuntimeFailureError
from starpullm.files.model import num_parameters
from starpullm.golden.plain import Settings
from starpullm.golden.records import GoldenRecord, shipped_record

from .plain_trainer import PlainTrainer, runtime

Fault = Callable[[PlainTrainer], None]

TINY = shipped_record("tiny")
CASE = Case("tiny", sub_batches=2, reduction="tree", seed=5)


@pytest.fixture
def context(tmp_path: Path) -> CheckContext:
    return CheckContext(runtime(), tmp_path)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Return a function that gives all new trainers a fault."""

    def give(fault: Fault) -> None:
        monkeypatch.setattr(references, "Trainer", partial(PlainTrainer, fault=fault))

    give(lambda trainer: None)
    return give


# ---- Records, models and batches ----


def test_records_are_found_by_name_or_file(strict: tuple[GoldenRecord, Path], tmp_path: Path) -> None:
    assert find_record("odd") == shipped_record("odd")
    assert find_record(str(strict[0].path)) == strict[0]
    with pytest.raises(FileError, match=r"^tinny: no such file, expected one or the name of .*: tiny, odd, .*124m$"):
        find_record("tinny")
    with pytest.raises(FileError):
        find_record(str(tmp_path / "tiny"))


def test_a_model_is_made_once_and_again_if_it_was_damaged(tmp_path: Path) -> None:
    path = checkpoint_in(tmp_path, TINY)
    assert path == tmp_path / TINY.checkpoint_sha256[:16] / "tiny.bin"
    content, written = path.read_bytes(), path.stat().st_mtime_ns
    assert (checkpoint_in(tmp_path, TINY), path.stat().st_mtime_ns) == (path, written)
    path.write_bytes(content[:-1] + b"\xff")
    assert checkpoint_in(tmp_path, TINY).read_bytes() == content


def test_every_rank_has_its_part_of_the_generated_batch(strict: tuple[GoldenRecord, Path]) -> None:
    whole = generate_tokens(3, 7, 4, 8, TINY.model.vocab_size)
    for rank in range(2):
        trainer: Any = PlainTrainer(runtime(ranks=2, rank=rank), strict[1], batch_size=2, seq_len=8)
        for tokens, all_tokens in zip(local_batch(trainer, 3, 7), whole, strict=True):
            assert np.array_equal(tokens, all_tokens[2 * rank : 2 * rank + 2])


def test_tensors_have_names_with_their_group_if_there_are_several(context: CheckContext, faulty: object) -> None:
    with new_trainer(context, TINY) as trainer:
        trainer.step(*local_batch(trainer, 1, 0))
        plain, grouped = named_tensors(trainer, "grads"), named_tensors(trainer, "m", "v")
        assert np.array_equal(plain["qkvw[1]"], trainer.tensor("grads", "qkvw", 1))
        assert np.array_equal(grouped["v/wte"], trainer.tensor("v", "wte"))
    assert set(grouped) == {f"{group}/{name}" for group in "mv" for name in plain}
    assert len(plain) == 28


def test_a_trainer_has_the_records_settings_and_its_options(
    context: CheckContext, faulty: Callable[[Fault], None]
) -> None:
    with new_trainer(context, TINY, sub_batches=2, reduction="tree", trace=True) as made:
        trainer: Any = made
        assert (trainer.batch_size, trainer.seq_len) == (TINY.batch_size, TINY.seq_len)
        assert (trainer.options["sub_batches"], trainer.options["reduction"]) == (2, "tree")
        assert (trainer.options["steps_in_flight"], trainer.options["trace"]) == (STEPS - 2, True)
        assert (trainer.options["keep_activations"], trainer.closed) == (True, False)
    assert trainer.closed
    of_ranks = new_trainer(CheckContext(runtime(ranks=3), context.directory), TINY)
    with pytest.raises(InvalidArgumentError, match=r"^tiny: its batch of 2 can't be spread over 3 ranks$"), of_ranks:
        pass


def test_a_trainer_has_the_records_settings_of_adamw(context: CheckContext, faulty: object) -> None:
    other = replace(TINY, learning_rate=0.5, beta1=0.25, beta2=0.75, eps=1e-3, weight_decay=0.125)
    with new_trainer(context, other) as made:
        trainer: Any = made
        assert trainer.settings == Settings(0.5, (0.25, 0.75), 1e-3, 0.125)


# ---- Gradients ----


def test_gradients_of_the_second_step_are_compared(context: CheckContext, faulty: Callable[[Fault], None]) -> None:
    passed = GradientBounds().run(context, CASE)
    assert (passed.outcome, len(passed.facts["tensors"])) == (Outcome.PASSED, 28)
    kept: dict[str, Any] = {}

    def add_first_step(trainer: PlainTrainer) -> None:
        if trainer.model.steps == 1:
            kept.update({name: values.copy() for name, values in trainer.model.grads.items()})
        else:
            trainer.model.grads["fcw[0]"] += kept["fcw[0]"]

    faulty(add_first_step)
    failed = GradientBounds().run(context, CASE)
    assert [finding.sentence.partition("]")[0] for finding in failed.findings] == ["fcw[0"]


def test_a_sum_that_is_not_finite_fails_in_the_step_in_which_it_is_made(
    context: CheckContext, faulty: Callable[[Fault], None]
) -> None:
    """From the second step on everything is NaN, and so is what it would be compared with."""
    steps = []

    def spoil(trainer: PlainTrainer) -> None:
        steps.append(trainer.model.steps)
        trainer.model.grads["fcw[0]"][1, 2] = np.nan

    faulty(spoil)
    failed = GradientBounds().run(context, CASE)
    assert failed.outcome is Outcome.FAILED
    assert failed.sentence.endswith("; 1 have values that aren't finite")
    assert [finding.sentence.partition("]")[0] for finding in failed.findings] == ["fcw[0"]
    assert steps == [1]


def test_sums_are_of_activations_with_the_bits_of_the_record(
    context: CheckContext, faulty: Callable[[Fault], None]
) -> None:
    """A gradient of twice all activations' gradients is a correct sum of them."""

    def double(trainer: PlainTrainer) -> None:
        for group in (trainer.model.activation_grads, trainer.model.grads):
            for values in group.values():
                np.multiply(values, np.float32(2), out=values)

    faulty(double)
    failed = GradientBounds().run(context, CASE)
    first = failed.findings[0].sentence
    assert first == "activation_grads/losses of the first step: expected the record's bits, found others"


def test_gradients_are_those_of_the_second_step(context: CheckContext, faulty: object) -> None:
    arrays = BitStability().run(context, CASE)
    with new_trainer(context, TINY, sub_batches=2, reduction="tree") as trainer:
        for number in range(2):
            trainer.step(*local_batch(trainer, 5, number))
        assert len(arrays) == 28
        assert np.array_equal(arrays["fcw[1]"], trainer.tensor("grads", "fcw", 1))


# ---- Very small numbers ----


def test_gradients_that_are_flushed_to_zero_are_found(context: CheckContext, faulty: Callable[[Fault], None]) -> None:
    passed = DenormalGradients().run(context, CASE)
    assert passed.outcome is Outcome.PASSED
    assert 100 < passed.compared < num_parameters(TINY.model)

    def flush(trainer: PlainTrainer) -> None:
        for values in trainer.model.grads.values():
            values[np.abs(values) < np.finfo(np.float32).smallest_normal] = 0

    faulty(flush)
    assert DenormalGradients().run(context, CASE).outcome is Outcome.FAILED


# ---- Traces ----


def test_labels_are_compared_beside_the_order(
    context: CheckContext, faulty: Callable[[Fault], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PlainTrainer] = []
    faulty(made.append)
    passed = ObservedOrder().run(context, CASE)
    assert passed.lines()[0].startswith("observed order: passed: ")
    assert [trainer.options["trace"] for trainer in made] == [True] * STEPS
    assert {(trainer.options["sub_batches"], trainer.options["reduction"]) for trainer in made} == {(2, "tree")}
    assert {trainer.options["keep_activations"] for trainer in made} == {False}
    trace = made[-1].trace()
    trace.tasks["sub_batch"][0] = 1
    monkeypatch.setattr(PlainTrainer, "trace", lambda self: trace)
    failed = ObservedOrder().run(context, CASE)
    assert failed.outcome is Outcome.FAILED
    assert [finding.sentence for finding in failed.findings] == [
        "label of write (step 0, sub-batch 1): found sub_batch 1, expected that of activations/encoded#0"
    ]


def test_a_run_without_its_delays_is_refused(context: CheckContext, faulty: object) -> None:
    with pytest.raises(RuntimeFailureError, match="delays: 0 of "):
        Perturbation().run(context, replace(CASE, delays=3))
    arrays = Perturbation().run(context, CASE)
    assert not isinstance(arrays, Result)
    assert {name.partition("/")[0] for name in arrays} == {"grads", "m", "v", "params"}
    assert len(arrays) == 4 * 28


def test_a_recording_names_what_was_trained_and_where(tmp_path: Path, faulty: object) -> None:
    context = CheckContext(runtime(partition="2x1", scheduler="random"), tmp_path)
    found = json.loads(json.dumps(recorded_run.record_steps(context, CASE)))
    assert (found["name"], found["configuration"]) == ("tiny, sub-batches 2, tree, 4 steps", "2x1 random")
    assert set(found["tasks"]["step"]) == set(range(STEPS))


def test_parity_is_that_of_the_record(context: CheckContext, faulty: object, strict: tuple[GoldenRecord, Path]) -> None:
    result = run_check(context, check=Parity(), case=Case(str(strict[0].path), sub_batches=2, reduction="tree"))
    assert isinstance(result, Result)
    assert result.lines()[0].startswith("parity of strict-2-tree on 1x1 lws: passed: ")
    assert (result.facts["record"], result.facts["reduction"]) == ("strict", "tree")
