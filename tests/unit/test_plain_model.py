"""The plain model (native/plain/gpt2.c) against the transcription of numerics.md in NumPy, and against llm.c's digests.

pytest runs it. The model is compiled alone, as the package's build does. With STARPULLM_LLMC_LIB, llm.c itself is
trained too.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from starpullm.checks.llmc import train_llmc
from starpullm.data.generator import generate_checkpoint, generate_parameters, generate_tokens
from starpullm.files.model import ModelConfig
from starpullm.golden.records import TENSOR_GROUPS, libm_fingerprint, shipped_record, split_layers, tensor_digest
from starpullm.scenario import plain
from starpullm.scenario.plain import PlainModel, Settings, new_state

from .strict_reference import F32, AdamW, StrictModel, libm

SOURCE = Path(__file__).parents[2] / "native" / "plain" / "gpt2.c"
OPTIONS = "-std=c11 -O2 -ffp-contract=off -shared -fPIC -fvisibility=hidden -Wall -Wextra -Werror".split()


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("plain") / "plain.so"
    subprocess.run(["cc", *OPTIONS, SOURCE, "-o", path, "-lm"], check=True, timeout=60)
    patch = pytest.MonkeyPatch()
    patch.setattr(plain, "library", lambda: plain.declared(ctypes.CDLL(str(path))))
    yield
    patch.undo()


def pair(config: ModelConfig, seed: int, B: int, T: int, settings: Settings) -> tuple[PlainModel, StrictModel]:
    params = dict(generate_parameters(config, seed))
    return PlainModel(config, new_state(config, params), B, T, settings), StrictModel(config, params, B, T)


def differing(model: PlainModel, strict: StrictModel) -> list[str]:
    return [
        f"{group}/{name}"
        for group, tensors in model.groups.items()
        for name, values in split_layers(dict(tensors))
        if values.tobytes() != getattr(strict, group)[name].tobytes()
    ]


@pytest.mark.parametrize("seed", range(6))
def test_every_tensor_has_the_bits_of_the_transcription(seed: int) -> None:
    random = Random(seed)
    NH, V = random.randint(1, 3), random.randint(1, 40)
    T = random.randint(1, 9)
    config = ModelConfig(
        max_seq_len=T + random.randint(0, 2),
        vocab_size=V,
        num_layers=random.randint(1, 2),
        num_heads=NH,
        channels=NH * random.randint(1, 9),
        padded_vocab_size=V + random.randint(0, 3),
    )
    B = random.randint(1, 4)
    settings = Settings(1e-2, (0.8, 0.95), 1e-6, 0.1)
    model, strict = pair(config, seed, B, T, settings)
    for step in range(2):
        inputs, targets = generate_tokens(seed, step, B, T, V)
        expected = strict.step(inputs, targets, AdamW(1e-2, 0.8, 0.95, 1e-6, 0.1))
        assert model.evaluate(inputs, targets).tobytes() == expected.tobytes()
        model.backward(inputs, targets)
        model.update()
        assert not differing(model, strict)


def test_a_tree_adds_the_gradients_of_parts() -> None:
    """Those of one sequence have four times the weight, so all of their numbers are four times as large, exactly."""
    config = shipped_record("tiny").model
    inputs, targets = generate_tokens(1, 0, 4, 5, config.vocab_size)
    model, _ = pair(config, 1, 4, 5, Settings())
    model.evaluate(inputs, targets)
    model.backward(inputs, targets, parts=4)
    parts = []
    for b in range(4):
        _, strict = pair(config, 1, 1, 5, Settings())
        strict.forward(inputs[b : b + 1], targets[b : b + 1])
        strict.backward(inputs[b : b + 1], targets[b : b + 1])
        parts.append({name: values / F32(4) for name, values in strict.grads.items()})
    for name, values in split_layers(dict(model.groups["grads"])):
        g0, g1, g2, g3 = (part[name] for part in parts)
        assert values.tobytes() == ((g0 + g1) + (g2 + g3)).tobytes(), name


def test_a_tree_of_five_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    config = shipped_record("tiny").model
    model, _ = pair(config, 1, 5, 1, Settings())
    terms = np.array([1e8, 1.0, -1e8, 3.0, 0.1], F32)

    def backward(model_: Any, inputs: Any, targets: Any, begin: ctypes.c_size_t, end: ctypes.c_size_t) -> None:
        assert end.value == begin.value + 1
        model.groups["grads"]["lnfb"][...] = terms[begin.value]

    monkeypatch.setattr(model, "_library", SimpleNamespace(plain_backward=backward))
    model.backward(*generate_tokens(1, 0, 5, 1, 2), parts=5)
    g0, g1, g2, g3, g4 = terms
    assert (model.groups["grads"]["lnfb"] == ((g0 + g1) + (g2 + g3)) + g4).all()


@pytest.mark.parametrize("name", ["tiny", "odd", "small", "deep", "single", "ragged"])
def test_every_digest_is_that_of_llmc(name: str, tmp_path: Path) -> None:
    record = shipped_record(name)
    live = os.environ.get("STARPULLM_LLMC_LIB")
    different = record.different_functions(libm_fingerprint(libm))
    if different and not live:
        pytest.skip(f"not comparable: another libm's {', '.join(different)}")
    expected: Sequence[dict[str, Any]] = [
        {"mean_loss_bits": step.mean_loss_bits, **step.digests} for step in record.steps
    ]
    if live:
        generate_checkpoint(tmp_path / "model.bin", record.model, record.seed)
        expected = train_llmc(Path(live), record, tmp_path / "model.bin")
    settings = Settings(record.learning_rate, (record.beta1, record.beta2), record.eps, record.weight_decay)
    model, _ = pair(record.model, record.seed, record.batch_size, record.seq_len, settings)
    for number, step in enumerate(expected):
        batch = generate_tokens(record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size)
        assert model.evaluate(*batch).tobytes()[::-1].hex() == step["mean_loss_bits"]
        model.backward(*batch)
        model.update()
        for group in TENSOR_GROUPS:
            found = {of: tensor_digest(values) for of, values in split_layers(dict(model.groups[group]))}
            assert found == step[group], f"step {number}, {group}"
