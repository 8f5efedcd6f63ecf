"""The plain model (native/plain/gpt2.c) against llm.c's digests, and the shape of its sums.

pytest runs it. With STARPULLM_LLMC_LIB, llm.c itself is trained too.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from starpullm.checks.llmc_reference import train_llmc
from starpullm.checks.references import of_arithmetic, plain_model, plain_steps
from starpullm.checks.training import make_inputs
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.errors import RuntimeFailureError
from starpullm.golden.records import GoldenRecord, shipped_record, step_results

from .plain_trainer import Model

F32 = np.float32
TINY = shipped_record("tiny")


def new_model(record: GoldenRecord, batch_size: int, seq_len: int) -> Model:
    return Model(record.model, dict(generate_parameters(record.model, record.seed)), batch_size, seq_len)


def test_a_tree_adds_the_gradients_of_parts() -> None:
    """Those of one sequence have four times the weight, so all of their numbers are four times as large, exactly."""
    inputs, targets = generate_tokens(1, 0, 4, 5, TINY.model.vocab_size)
    model = new_model(TINY, 4, 5)
    model.plain.evaluate(inputs, targets)
    model.plain.backward(inputs, targets, parts=4)
    parts = []
    for b in range(4):
        alone = new_model(TINY, 1, 5)
        alone.step(inputs[b : b + 1], targets[b : b + 1])
        parts.append({name: values / F32(4) for name, values in alone.grads.items()})
    for name, values in model.grads.items():
        g0, g1, g2, g3 = (part[name] for part in parts)
        assert values.tobytes() == ((g0 + g1) + (g2 + g3)).tobytes(), name


def test_a_tree_of_five_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = new_model(TINY, 5, 1)
    terms = np.array([1e8, 1.0, -1e8, 3.0, 0.1], F32)

    def backward(model_: Any, inputs: Any, targets: Any, begin: ctypes.c_size_t, end: ctypes.c_size_t) -> None:
        assert end.value == begin.value + 1
        model.grads["lnfb"][...] = terms[begin.value]

    monkeypatch.setattr(model.plain, "_library", SimpleNamespace(plain_backward=backward))
    model.plain.backward(*generate_tokens(1, 0, 5, 1, 2), parts=5)
    g0, g1, g2, g3, g4 = terms
    assert (model.grads["lnfb"] == ((g0 + g1) + (g2 + g3)) + g4).all()


@pytest.mark.parametrize("name", ["tiny", "odd", "deep", "single", "ragged", "long", "wide"])
def test_fused_sums_are_those_of_llmc(name: str, tmp_path: Path) -> None:
    """The record has the digest of what llm.c computes; the step's other arithmetic is the same, but not its bits."""
    record = shipped_record(name)
    checkpoint = make_inputs(record, tmp_path)
    fused = of_arithmetic(record, "fused", checkpoint)
    assert [step.mean_loss for step in fused.steps] == pytest.approx([step.mean_loss for step in record.steps])
    assert fused.steps != record.steps
    with pytest.raises(RuntimeFailureError, match=r"fused results have the digest .*, expected llm\.c's"):
        of_arithmetic(replace(record, fused_sha256="0" * 64), "fused", checkpoint)


@pytest.mark.parametrize("name", ["tiny", "odd", "small", "deep", "single", "ragged"])
def test_every_digest_is_that_of_llmc(name: str, tmp_path: Path) -> None:
    """The plain model, the records and, if there is one, a live llm.c: all three have the same results."""
    record = shipped_record(name)
    checkpoint = make_inputs(record, tmp_path)
    model = plain_model(record, checkpoint)
    expected = json.loads(record.path.read_text())["steps"]
    for loss, step in zip(plain_steps(record, model), expected, strict=True):
        assert step_results(loss, model.groups) == step
    if live := os.environ.get("STARPULLM_LLMC_LIB"):
        assert train_llmc(Path(live), record, checkpoint) == expected
