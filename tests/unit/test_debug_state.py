"""Tests of reading and writing debug states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.errors import (
    FormatError,
    TokenRangeError,
)
from starpullm.files.debug_state import read_debug_state
from starpullm.files.model import ModelConfig

from .file_kinds import (
    CONFIG,
    KINDS,
    configs,
    patch_int32,
    same_bits,
    some_debug_state,
    write_debug_state,
)


@given(
    config=configs(),
    batch_size=st.integers(1, 3),
    seq_len=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    mmap=st.booleans(),
)
def test_debug_state_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    config: ModelConfig,
    batch_size: int,
    seq_len: int,
    seed: int,
    mmap: bool,
) -> None:
    """What is written is read, bit for bit."""
    config = replace(config, max_seq_len=max(config.max_seq_len, seq_len))
    path = tmp_path_factory.mktemp("debug") / "state.bin"
    state = some_debug_state(config, batch_size, seq_len, seed)
    write_debug_state(path, state)
    read = read_debug_state(path, config, mmap=mmap)
    assert np.array_equal(read.inputs, state.inputs)
    assert np.array_equal(read.targets, state.targets)
    assert same_bits(read.logits, state.logits)
    assert read.loss == state.loss
    assert all(same_bits(read.gradients[name], state.gradients[name]) for name in state.gradients)
    header = np.frombuffer(path.read_bytes(), "<i4", 4).tolist()
    assert header == [20240327, 2, batch_size, seq_len]


@pytest.mark.parametrize(("index", "value"), [(2, 0), (2, -4), (3, 0), (3, -1), (3, 5)])
def test_debug_state_of_bad_sizes(tmp_path: Path, index: int, value: int) -> None:
    """B and T have to be positive, T at most maxT."""
    path = tmp_path / "state.bin"
    KINDS[3].write(path)
    patch_int32(path, index, value)
    with pytest.raises(FormatError, match=rf"byte {4 * index}: expected .*, found {value}$"):
        read_debug_state(path, CONFIG)


@pytest.mark.parametrize("index", [256, 261, 262, 267])
@pytest.mark.parametrize("value", [-1, 5, 2**31 - 1])
def test_debug_state_with_token_out_of_range(tmp_path: Path, index: int, value: int) -> None:
    """Ids of inputs and targets are checked against V."""
    path = tmp_path / "state.bin"
    KINDS[3].write(path)
    patch_int32(path, index, value)
    with pytest.raises(TokenRangeError, match=rf"byte {4 * index}: expected .* in \[0, 5\), found {value}$"):
        read_debug_state(path, CONFIG)


def test_debug_state_of_another_model(tmp_path: Path) -> None:
    """The file's size shows that it belongs to another model."""
    path = tmp_path / "state.bin"
    KINDS[3].write(path)
    with pytest.raises(FormatError, match="bytes in all"):
        read_debug_state(path, replace(CONFIG, num_layers=3))
    with pytest.raises(FormatError, match="more bytes"):
        read_debug_state(path, replace(CONFIG, num_layers=1))
