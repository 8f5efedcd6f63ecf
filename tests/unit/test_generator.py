"""Tests of generated models and tokens, and of untrained models."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.data import generator
from starpullm.data.generator import (
    generate_checkpoint,
    generate_parameters,
    generate_tokens,
    generated_tokens_sha256,
    initial_checkpoint,
)
from starpullm.data.models import MODELS
from starpullm.errors import FileError, InvalidArgumentError
from starpullm.files.checkpoint import checkpoint_header, read_checkpoint
from starpullm.files.model import ModelConfig, num_parameters, padded_vocab, parameter_shapes
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record


def mix_one(value: int) -> int:
    """The mixing function of golden/README.md in Python's own integers."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


SCALES = {"wte": 0.04, "qkvw": 0.04, "fcw": 0.04, "wpe": 0.02, "attprojw": 0.02, "fcprojw": 0.02}
CONFIG = ModelConfig(5, 7, 2, 2, 6, 9)


def literal_parameter(name: str, number: int, count: int, seed: int) -> list[float]:
    """A generated parameter as golden/README.md has it, one element at a time."""
    values = []
    for index in range(count):
        stream = mix_one(((100 * seed + number << 32) + index) % 2**64)
        unit = np.float32((stream >> 40) - 2**23) * np.float32(2.0**-23)
        if name in ("ln1w", "ln2w", "lnfw"):
            value = unit * np.float32(0.1) + np.float32(1)
        else:
            value = unit * np.float32(SCALES.get(name, 0.01))
        values.append(float(value))
    return values


def checkpoint_sha256(config: ModelConfig, seed: int) -> str:
    digest = hashlib.sha256(checkpoint_header(config))
    for _, array in generate_parameters(config, seed):
        digest.update(array.astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def test_generated_parameters_of_a_large_seed() -> None:
    """Names, shapes and every element are those of the description; the records' seeds are small."""
    seed = 2**40
    parameters = dict(generate_parameters(CONFIG, seed))
    assert {name: array.shape for name, array in parameters.items()} == parameter_shapes(CONFIG)
    assert list(parameters) == list(parameter_shapes(CONFIG))
    for number, (name, array) in enumerate(parameters.items()):
        assert array.dtype == np.float32
        assert array.reshape(-1).tolist() == literal_parameter(name, number, array.size, seed)


def test_generator_goes_on_over_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many elements are made at a time makes no difference."""
    digest = generate_checkpoint(tmp_path / "model.bin", CONFIG, 3)
    monkeypatch.setattr(generator, "_GENERATOR_CHUNK", 5)
    assert generate_checkpoint(tmp_path / "model.bin", CONFIG, 3) == checkpoint_sha256(CONFIG, 3) == digest


@pytest.mark.parametrize("name", SHIPPED_RECORDS[:-1])
def test_generated_inputs_of_the_records(name: str) -> None:
    """Checkpoint and tokens of every record have the SHA-256 that llm.c was given."""
    record = shipped_record(name)
    tokens = generated_tokens_sha256(
        record.seed, record.num_steps, record.batch_size, record.seq_len, record.model.vocab_size
    )
    assert tokens == record.tokens_sha256
    assert checkpoint_sha256(record.model, record.seed) == record.checkpoint_sha256


def test_generated_checkpoint(tmp_path: Path) -> None:
    """The file has the hash that is returned, and holds the generated parameters."""
    path = tmp_path / "model.bin"
    record = shipped_record("odd")
    digest = generate_checkpoint(path, record.model, record.seed)
    content = path.read_bytes()
    assert digest == record.checkpoint_sha256 == hashlib.sha256(content).hexdigest()
    assert content.startswith(checkpoint_header(record.model))
    with pytest.raises(FileError, match="can't be written"):
        generate_checkpoint(tmp_path / "none" / "model.bin", record.model, record.seed)


@given(
    seed=st.integers(0, 1000),
    step=st.integers(0, 2**40),
    batch_size=st.integers(1, 3),
    seq_len=st.integers(1, 5),
    vocab_size=st.integers(1, 60000),
)
def test_generated_tokens(seed: int, step: int, batch_size: int, seq_len: int, vocab_size: int) -> None:
    """Every id is that of the description; the first B·T are the inputs."""
    inputs, targets = generate_tokens(seed, step, batch_size, seq_len, vocab_size)
    count = 2 * batch_size * seq_len
    expected = [mix_one(((100 * seed + 50 << 32) + step * count + j) % 2**64) % vocab_size for j in range(count)]
    assert inputs.dtype == targets.dtype == np.int32
    assert inputs.shape == targets.shape == (batch_size, seq_len)
    assert [*inputs.reshape(-1).tolist(), *targets.reshape(-1).tolist()] == expected


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, -1)])
def test_generated_tokens_of_bad_sizes(sizes: tuple[int, int, int]) -> None:
    """Sizes have to be positive."""
    with pytest.raises(InvalidArgumentError, match="expected a positive number"):
        generate_tokens(1, 0, *sizes)


def initial(directory: Path, config: ModelConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return the parameters of an untrained model."""
    initial_checkpoint(directory / "model.bin", config, seed)
    return read_checkpoint(directory / "model.bin").parameters


def test_initial_parameters(tmp_path: Path) -> None:
    """As GPT-2 was initialised."""
    config = ModelConfig(256, 300, 4, 4, 64, 320)
    parameters = initial(tmp_path, config, 42)
    assert {name: array.shape for name, array in parameters.items()} == parameter_shapes(config)
    for name, array in parameters.items():
        assert array.dtype == np.float32
        if name in ("ln1w", "ln2w", "lnfw"):
            assert np.all(array == 1)
        elif name.endswith("b"):
            assert np.all(array == 0)
        else:
            drawn = array[:300] if name == "wte" else array
            std = 0.02 / math.sqrt(8) if name in ("attprojw", "fcprojw") else 0.02
            assert drawn.std() == pytest.approx(std, rel=0.05)
            assert abs(drawn.mean()) < 0.05 * std
    assert np.all(parameters["wte"][300:] == 0)


def test_initial_parameters_depend_on_the_seed_alone(tmp_path: Path) -> None:
    """A seed gives one model, however far its vocabulary is padded; another seed gives another."""
    first = initial(tmp_path, ModelConfig(8, 10, 2, 1, 4, 10), 1)
    padded = initial(tmp_path, ModelConfig(8, 10, 2, 1, 4, 16), 1)
    other = initial(tmp_path, ModelConfig(8, 10, 2, 1, 4, 10), 2)
    assert np.array_equal(first["wte"], padded["wte"][:10])
    assert np.array_equal(first["fcprojw"], padded["fcprojw"])
    assert not np.array_equal(first["fcprojw"], other["fcprojw"])


def test_initial_checkpoint_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds the parameters that are drawn as a whole, wherever it is cut."""
    config = ModelConfig(8, 10, 2, 1, 4, 16)
    expected = initial(tmp_path, config, 1)
    monkeypatch.setattr(generator, "_INITIAL_CHUNK", 7)
    assert all(array.tobytes() == expected[name].tobytes() for name, array in initial(tmp_path, config, 1).items())


def test_named_models() -> None:
    """The numbers of parameters that GPT-2's authors and llm.c give; `tiny` is the record's model."""
    sizes = {
        name: num_parameters(replace(config, padded_vocab_size=50257))
        for name, config in MODELS.items()
        if config.vocab_size == 50257
    }
    assert sizes == {
        "gpt2": 124439808,
        "gpt2-medium": 354823168,
        "gpt2-large": 774030080,
        "gpt2-xl": 1557611200,
    }
    assert [MODELS[name].channels // MODELS[name].num_heads for name in sizes] == [64] * 4
    assert MODELS["tiny"] == shipped_record("tiny").model
    assert {MODELS[name].padded_vocab_size for name in sizes} == {padded_vocab(50257)}
