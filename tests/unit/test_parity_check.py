"""What the parity check makes of runs: right ones, and ones with a wrong bit.

tests/native/test_parity.py has real runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks import parity, references
from starpullm.checks.cases import Case
from starpullm.checks.execution_order import execution_order
from starpullm.checks.references import ExpectedValues, GoldenReference
from starpullm.checks.result import Outcome, Result
from starpullm.checks.training import make_inputs
from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.golden.records import GoldenRecord, shipped_record, tensor_digest

from .plain_trainer import PlainTrainer, flip, runtime

Fault = Callable[[PlainTrainer], None]
Run = Callable[..., Result]

TENSORS = 2 * 190
"""Of both steps: 3 groups of 28 parameters, their gradients, and 39 activations with their gradients."""


def none(trainer: PlainTrainer) -> None:
    """No fault."""


@pytest.fixture
def run(strict: tuple[GoldenRecord, Path], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the check on a trainer with a fault."""
    record, checkpoint = strict

    def run_with(fault: Fault = none, options_of_runtime: Any = None, **options: Any) -> Result:
        case = Case("", sub_batches=options.pop("sub_batches", 1), reduction=options.pop("reduction", "ordered"))
        case = replace(case, activation_sets=options.pop("activation_sets", 0))
        monkeypatch.setattr(references, "Trainer", partial(PlainTrainer, fault=fault))
        return parity.Parity().compare(record, runtime(**(options_of_runtime or {})), checkpoint, case, **options)

    return run_with


def at(step: int, *places: tuple[str, str, tuple[int, ...]]) -> Fault:
    """Return a fault that flips bits after one step, from 0: group, tensor, element."""

    def fault(trainer: PlainTrainer) -> None:
        if trainer.model.steps == step + 1:
            for group, name, index in places:
                flip(getattr(trainer.model, group)[name], *index)

    return fault


def test_a_right_run_passes_and_every_tensor_is_counted(run: Run) -> None:
    done: list[None] = []
    result = run(sub_batches=2, reduction="tree", progress=lambda: done.append(None))
    assert (result.outcome, result.compared, result.measured, result.limit) == (Outcome.PASSED, TENSORS, 0, 0)
    assert result.lines() == [f"parity: passed: {TENSORS} tensors compared; 2 steps against golden record"]
    assert len(done) == 2
    assert result.facts == {
        **{"record": "strict", "reference": "golden record", "steps": 2, "first": ""},
        **{"partition": "1x1", "scheduler": "lws", "ranks": 1, "sub_batches": 2, "reduction": "tree"},
        **{
            "weight_gradient_tiles": 0,
            "matmul": "strict",
            "platform_functions": False,
            "activation_sets": 0,
            "recompute": "none",
            "weight_gradients": "kept",
        },
        **{"stages": 1, "schedule": "gpipe", "gradient_buffers": "shared"},
    }


def test_the_trainer_is_made_as_the_record_says(run: Run, strict: tuple[GoldenRecord, Path]) -> None:
    """Else it would train with other options than those that were asked for."""
    made: list[PlainTrainer] = []
    run(made.append, sub_batches=2, reduction="tree")
    trainer, record = made[-1], strict[0]
    assert trainer.options == {
        **{"resume": None, "sub_batches": 2, "reduction": "tree", "keep_activations": True},
        **{"trace": True, "instruments": None, "weight_gradient_tiles": 0, "activation_sets": 0},
        **{
            "recompute": "none",
            "weight_gradients": "kept",
            "stages": 1,
            "schedule": "gpipe",
            "gradient_buffers": "shared",
        },
    }
    assert (trainer.batch_size, trainer.seq_len) == (record.batch_size, record.seq_len)
    assert trainer.closed


def test_one_bit_of_a_gradient_fails_and_is_described(run: Run) -> None:
    result = run(at(0, ("grads", "fcw[1]", (3, 4))))
    assert (result.outcome, result.compared, result.measured) == (Outcome.FAILED, TENSORS, 1)
    [finding] = result.findings
    assert (finding.where, result.facts["first"]) == ("step 0, grads/fcw[1]", "step 0, grads/fcw[1]")
    assert (result.facts["ulps_of_first"], result.facts["ulps_at_most"]) == (1, 1)
    assert list(finding.evidence) == [
        *("differ", "first element", "expected", "found", "elements by ULPs off", "expected values", "written last by")
    ]
    assert finding.evidence["first element"] == "52, [3, 4]"
    assert finding.evidence["found"].endswith(", 1 ULP off")
    assert finding.evidence["expected values"] == "from the plain sequential model, which has the record's digest"
    assert finding.evidence["written last by"] == "write (step 0) on worker 3 of rank 0"


def test_causes_come_before_effects() -> None:
    order = list(execution_order(2))
    chain = [
        ("activations", "encoded", None),
        ("activations", "att", 0),
        ("activations", "ln1", 1),
        ("activations", "losses", None),
        ("activation_grads", "logits", None),
        ("grads", "lnfw", None),
        ("activation_grads", "residual3", 1),
        ("grads", "fcprojw", 1),
        ("activation_grads", "ln1", 1),
        ("activation_grads", "residual3", 0),
        ("activation_grads", "encoded", None),
        ("grads", "wte", None),
        ("m", "wte", None),
        ("params", "lnfb", None),
    ]
    positions = [order.index(entry) for entry in chain]
    assert positions == sorted(positions)


def test_differences_are_in_the_order_of_execution(run: Run) -> None:
    places = [("params", "wpe", (0, 0)), ("activations", "qkv[1]", (1, 7, 3)), ("activations", "logits", (0, 0, 0))]
    result = run(at(0, *places), sub_batches=2)
    steps = [finding.where for finding in result.findings]
    assert steps[:3] == ["step 0, activations/qkv[1]", "step 0, activations/logits", "step 0, params/wpe"]
    assert steps[3] == "step 1, activations/encoded"  # trained with the wrong parameter
    assert (len(steps), result.lines()[-1]) == (20, f"  … and {result.count - 20} more")
    assert "sub-batch 1" in result.findings[0].evidence["written last by"]


@pytest.mark.parametrize(("index", "part"), [((0, 7, 3), 0), ((1, 0, 0), 1)])
def test_of_an_activation_the_part_that_differs_has_a_writer(run: Run, index: tuple[int, ...], part: int) -> None:
    [first, *_] = run(at(0, ("activation_grads", "qkv[0]", index)), sub_batches=2).findings
    assert re.findall("sub-batch (.)", first.evidence["written last by"]) == [str(part)]


@pytest.mark.parametrize("sequence", [0, 1])
def test_of_sub_batches_that_share_activations_the_last_are_compared(run: Run, sequence: int) -> None:
    """Without those that blocks share: 3 activations of each of the 2, and all their gradients."""
    fault = at(0, ("activations", "qkv[1]", (sequence, 7, 3)), ("activation_grads", "logits", (sequence, 0, 0)))
    result = run(fault, sub_batches=2, activation_sets=1)
    assert result.compared == TENSORS - 2 * 2 * (3 + 16)
    assert result.measured == (2 if sequence == 1 else 0)
    assert "activations of the last 1 of 2 sub-batches" in result.lines()[0]
    if sequence == 1:
        assert result.findings[0].evidence["first element"].endswith("[1, 7, 3]")


def test_a_wrong_loss_fails_beside_right_tensors(run: Run) -> None:
    def fault(trainer: PlainTrainer) -> None:
        if trainer.model.steps == 2:
            trainer.loss = np.nextafter(trainer.loss, np.float32(0))

    result = run(fault)
    [finding] = result.findings
    assert (finding.where, result.facts["ulps_of_first"]) == ("step 1, loss/mean_loss", 1)
    assert finding.evidence["expected values"] == "the record's"
    assert finding.evidence["written last by"].startswith("write (step 1)")


def test_a_reference_that_is_named_is_asked(run: Run, strict: tuple[GoldenRecord, Path]) -> None:
    asked: list[tuple[object, ...]] = []

    class Other(GoldenReference):
        name = "another"

        def expected_values(self, step: int, group: str, tensor: str) -> ExpectedValues:
            asked.append((step, group, tensor))
            return ExpectedValues(None, "nowhere")

    result = run(at(1, ("v", "lnfb", (2,))), reference=Other(*strict))
    [finding] = result.findings
    assert (result.facts["reference"], asked) == ("another", [(1, "v", "lnfb")])
    assert list(finding.evidence) == ["expected digest", "found digest", "expected values", "written last by"]
    assert finding.evidence["expected values"] == "nowhere"


def test_what_no_task_has_written_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = PlainTrainer._buffers
    monkeypatch.setattr(PlainTrainer, "_buffers", lambda self: (name for name in empty(self) if "fcw" not in name))
    assert run(at(0, ("grads", "fcw[1]", (3, 4)))).lines()[-1] == "    written last by       no task of this step"


def test_what_is_not_comparable_is_not_run(run: Run) -> None:
    result = run(options_of_runtime={"matmul": "blas"})
    assert (result.outcome, result.compared, result.measured) == (Outcome.NOT_COMPARABLE, 0, None)
    assert (result.sentence, result.facts["matmul"]) == ("matmuls by blas, expected strict ones", "blas")


def test_ranks_have_to_divide_the_batch(run: Run) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^strict: its batch of 2 can't be spread over 3 ranks$"):
        run(options_of_runtime={"ranks": 3})


# ---- Expected values ----


def test_values_are_the_plain_models_if_they_have_the_records_digest(strict: tuple[GoldenRecord, Path]) -> None:
    record, checkpoint = strict
    for step, group in ((0, "grads"), (1, "m")):
        found = GoldenReference(record, checkpoint).expected_values(step, group, "fcw[1]")
        assert found.source == "from the plain sequential model, which has the record's digest"
        assert found.values is not None
        assert found.values.shape == (64, 16)
        assert tensor_digest(found.values) == record.steps[step].digests[group]["fcw[1]"]
    groups = record.steps[0].digests
    digests = {**groups, "grads": {**groups["grads"], "fcw[1]": "0" * 32}}
    other = replace(record, steps=(replace(record.steps[0], digests=digests), record.steps[1]))
    found = GoldenReference(other, checkpoint).expected_values(0, "grads", "fcw[1]")
    assert found == ExpectedValues(None, "the record has a digest only, and the plain model has another one")


def test_a_large_model_is_not_trained_again(tmp_path: Path) -> None:
    found = GoldenReference(shipped_record("gpt2-124m"), tmp_path / "none").expected_values(0, "grads", "wte")
    assert found == ExpectedValues(None, "the record has a digest only, and the model is large for the plain one")


# ---- Inputs ----


def test_inputs_with_another_hash_are_refused(strict: tuple[GoldenRecord, Path], tmp_path: Path) -> None:
    record = strict[0]
    path = make_inputs(record, tmp_path)
    assert (path, path.read_bytes()) == (tmp_path / "strict.bin", strict[1].read_bytes())
    path.unlink()
    with pytest.raises(FormatError, match=rf"key tokens_sha256: expected {record.tokens_sha256}, found other$"):
        make_inputs(replace(record, tokens_sha256="other"), tmp_path)
    with pytest.raises(FormatError, match=rf"key checkpoint_sha256: expected {record.checkpoint_sha256}, found other$"):
        make_inputs(replace(record, checkpoint_sha256="other"), tmp_path)
    assert list(tmp_path.iterdir()) == []
