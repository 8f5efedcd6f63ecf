"""Tests of model configs and checkpoints."""

from __future__ import annotations

import os
import resource
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.errors import FormatError, InvalidArgumentError, OutOfMemoryError
from starpullm.files.checkpoint import (
    Checkpoint,
    checkpoint_config,
    checkpoint_header,
    read_checkpoint,
    write_checkpoint,
)
from starpullm.files.header import HEADER_BYTES
from starpullm.files.model import ModelConfig, num_parameters

from .file_kinds import CONFIG, KINDS, configs, patch_int32, same_bits, some_tensors, sparse

BAD_SIZES = [
    *((name, value) for name in asdict(CONFIG) for value in (0, -1, -(2**31))),
    ("num_heads", 3),
    ("padded_vocab_size", 4),
    ("channels", 2**31 - 2),
]


@pytest.mark.parametrize(("name", "value"), BAD_SIZES)
def test_bad_sizes_in_a_file(tmp_path: Path, name: str, value: int) -> None:
    """The same sizes in a header are refused with the byte they stand at."""
    path = tmp_path / "model.bin"
    KINDS[0].write(path)
    patch_int32(path, 2 + list(asdict(CONFIG)).index(name), value)
    blamed = "channels" if name == "num_heads" and value > 0 else name
    offset = 8 + 4 * list(asdict(CONFIG)).index(blamed)
    for read in (read_checkpoint, checkpoint_config):
        with pytest.raises(FormatError, match=rf", byte {offset}: expected {blamed} to be .*, found "):
            read(path)


@pytest.mark.parametrize("value", [2**31, 2**63, 2**64])
def test_sizes_beyond_the_header(value: int) -> None:
    """A size has to fit into the header's int32."""
    with pytest.raises(InvalidArgumentError, match="vocab_size"):
        replace(CONFIG, vocab_size=value)


def test_sizes_that_overflow() -> None:
    """Each size may be large where their product isn't."""
    large = ModelConfig(2**31 - 1, 2**31 - 1, 1, 1, 1, 2**31 - 1)
    assert num_parameters(large) > 2**32
    with pytest.raises(InvalidArgumentError, match="bytes fit into 64 bits"):
        replace(large, channels=2**29, num_layers=2**20)


def test_sizes_have_to_be_integers() -> None:
    """NumPy's integers will do, floats won't."""
    sizes: list[Any] = [np.int64(size) for size in asdict(CONFIG).values()]
    assert ModelConfig(*sizes) == CONFIG
    sizes[2] = 2.0
    with pytest.raises(InvalidArgumentError, match=r"num_layers: expected an integer, found 2\.0"):
        ModelConfig(*sizes)


@given(config=configs(), seed=st.integers(0, 2**32), mmap=st.booleans())
def test_checkpoint_round_trip(
    tmp_path_factory: pytest.TempPathFactory, config: ModelConfig, seed: int, mmap: bool
) -> None:
    """What is written is read, bit for bit, and the file has llm.c's layout."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.bin"
    tensors = some_tensors(config, seed)
    write_checkpoint(path, Checkpoint(config, tensors))
    read = read_checkpoint(path, mmap=mmap)
    assert read.config == config == checkpoint_config(path)
    assert list(read.parameters) == list(tensors)
    assert all(same_bits(read.parameters[name], tensors[name]) for name in tensors)
    content = path.read_bytes()
    assert np.frombuffer(content, "<i4", 8).tolist() == [20240326, 3, *asdict(config).values()]
    assert content[32:HEADER_BYTES] == bytes(HEADER_BYTES - 32)
    assert content[HEADER_BYTES:] == b"".join(array.tobytes() for array in tensors.values())


def test_bfloat16_is_named(tmp_path: Path) -> None:
    """llm.c's bfloat16 checkpoints are refused as what they are."""
    path = tmp_path / "gpt2_124M_bf16.bin"
    KINDS[0].write(path)
    patch_int32(path, 1, 5)
    with pytest.raises(FormatError, match=r"byte 4: expected version 3 \(float32\), found version 5 \(bfloat16"):
        read_checkpoint(path)


def test_truncation_names_the_tensor(tmp_path: Path) -> None:
    """The sentence says which tensor is cut."""
    path = tmp_path / "model.bin"
    KINDS[0].write(path)
    os.truncate(path, HEADER_BYTES + 4 * (8 * 4) + 5)
    with pytest.raises(FormatError, match=r"found the end of the file in wpe$"):
        read_checkpoint(path)


def test_mapped_arrays_are_read_only(tmp_path: Path) -> None:
    """A mapped checkpoint can't be changed by accident; one in memory is the reader's own."""
    path = tmp_path / "model.bin"
    KINDS[0].write(path)
    assert not read_checkpoint(path, mmap=True).parameters["wte"].flags.writeable
    assert type(read_checkpoint(path, mmap=True).parameters["wte"]) is np.ndarray
    assert read_checkpoint(path).parameters["wte"].flags.writeable


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape", "dtype"])
def test_checkpoint_of_wrong_arrays(damage: str) -> None:
    """A checkpoint can't be made of arrays that don't fit its sizes."""
    tensors = some_tensors(CONFIG)
    if damage == "missing":
        del tensors["qkvw"]
    elif damage == "unknown":
        tensors["bias"] = tensors["qkvb"]
    elif damage == "shape":
        tensors["qkvw"] = tensors["qkvw"][:1]
    else:
        tensors["qkvw"] = np.zeros((2, 12, 4), np.float64)
    with pytest.raises(InvalidArgumentError, match=r"parameters.*(qkvw|bias)"):
        Checkpoint(CONFIG, tensors)


def test_order_of_arrays_does_not_matter(tmp_path: Path) -> None:
    """A checkpoint brings its arrays into the file's order."""
    tensors = some_tensors(CONFIG)
    backwards = Checkpoint(CONFIG, dict(reversed(tensors.items())))
    assert list(backwards.parameters) == list(tensors)


def test_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    """Views are written row by row as they look."""
    tensors = some_tensors(CONFIG)
    tensors["wte"] = np.asfortranarray(tensors["wte"])
    path = tmp_path / "model.bin"
    write_checkpoint(path, Checkpoint(CONFIG, tensors))
    assert same_bits(read_checkpoint(path).parameters["wte"], tensors["wte"])


def test_checkpoint_beyond_two_gigabytes(tmp_path: Path) -> None:
    """Positions are 64-bit."""
    config = ModelConfig(1, 1, 1, 1, 1, 600_000_000)
    path = tmp_path / "model.bin"
    size = HEADER_BYTES + 4 * num_parameters(config)
    assert size > 2**31
    sparse(path, checkpoint_header(config), size, np.float32(1.5).tobytes())
    assert checkpoint_config(path) == config
    assert read_checkpoint(path, mmap=True).parameters["lnfb"].tolist() == [1.5]


def test_no_memory(tmp_path: Path) -> None:
    """A checkpoint that doesn't fit into memory is refused as such; its header can still be read."""
    config = ModelConfig(1, 1, 1, 1, 2**10, 2**31 - 1)
    path = tmp_path / "model.bin"
    try:
        sparse(path, checkpoint_header(config), HEADER_BYTES + 4 * num_parameters(config), b"")
    except OSError:
        pytest.skip("this file system has no files of 8 TB")
    assert checkpoint_config(path) == config
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, hard))
    try:
        with pytest.raises(OutOfMemoryError, match="no memory"):
            read_checkpoint(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
