"""The tests' own reader of training states accepts what docs/formats.md describes, and no other byte.

What the library refuses of states is in tests/native/limits.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.errors import FormatError
from starpullm.files.model import ModelConfig, parameter_shapes

from ..native.readers.state_file import BLOCK, StateFile
from ..native.readers.training_state import TrainingStateContents, read_training_state

CONFIG = ModelConfig(max_seq_len=4, vocab_size=85, num_layers=2, num_heads=2, channels=16, padded_vocab_size=90)
LAYERED = [name for name in parameter_shapes(CONFIG) if name not in ("wte", "wpe", "lnfw", "lnfb")]
TENSORS = [
    (name, layer) for name in parameter_shapes(CONFIG) for layer in range(CONFIG.num_layers if name in LAYERED else 1)
]
ORDER = ("step", "run", "batches", "batch_size", "seq_len", "seed", "data_id")
RATES = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}


def some_tensors(seed: int) -> dict[str, NDArray[np.float32]]:
    """Arrays with bits of all kinds, NaN and subnormals included."""
    random = np.random.default_rng(seed)
    shapes = parameter_shapes(CONFIG).items()
    return {name: random.integers(0, 2**32, shape, np.uint32).view(np.float32) for name, shape in shapes}


def some_state(step: int = 7, **changes: Any) -> TrainingStateContents:
    numbers: dict[str, Any] = {"batches": 5 * 2**32 + 1, "batch_size": 4, "seq_len": 3, "run": 0xFEDCBA9876543210}
    numbers |= {"seed": -7, "data_id": 2**63 + 1, "blas": 1}
    numbers |= {name: float(np.float32(rate)) for name, rate in RATES.items()}
    params, m, v = (some_tensors(3 * step + part) for part in range(3))
    return TrainingStateContents(CONFIG, params=params, m=m, v=v, **{**numbers, "step": step, **changes})


def assert_same(left: TrainingStateContents, right: TrainingStateContents) -> None:
    for field in fields(TrainingStateContents):
        found, expected = getattr(left, field.name), getattr(right, field.name)
        if field.name in ("params", "m", "v"):
            assert list(found) == list(expected)
            assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
        else:
            assert found == expected


def fnv1a(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def bytes_of(state: TrainingStateContents, rank: int, num_ranks: int) -> bytes:
    """Return a file made from docs/formats.md alone."""
    owned = TENSORS[rank::num_ranks]
    header = struct.pack("<11i4x", 20261121, 2, *asdict(CONFIG).values(), rank, num_ranks, len(owned))
    header += struct.pack("<qQqqqqQ", *(getattr(state, name) for name in ORDER))
    header += struct.pack("<5fi", *(getattr(state, name) for name in RATES), state.blas)
    header = header.ljust(1024, b"\0")
    position = len(padded(bytes(1024 + 52 * len(owned))))
    values = checksums = b""
    for name, layer in owned:
        groups = (state.params, state.m, state.v)
        parts = [(group[name][layer] if name in LAYERED else group[name]).astype("<f4").tobytes() for group in groups]
        positions = []
        for part in parts:
            positions.append(position)
            position += len(padded(part))
            values += padded(part)
        checksums += struct.pack("<3I", *map(zlib.crc32, parts))
        number = list(parameter_shapes(CONFIG)).index(name)
        header += struct.pack("<iiqqqq", number, layer, len(parts[0]) // 4, *positions)
    header = padded(header + checksums)
    size = position + BLOCK
    end = struct.pack("<iiqQiiQq", 20261121, 2, state.step, state.run, rank, num_ranks, fnv1a(header), size)
    return header + values + padded(end)


def write(root: Path, state: TrainingStateContents, num_ranks: int = 1) -> Path:
    folder = root / f"step-{state.step:012}"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(num_ranks):
        (folder / f"rank-{rank:05}-of-{num_ranks:05}.state").write_bytes(bytes_of(state, rank, num_ranks))
    return folder


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 30])
def test_ranks(tmp_path: Path, num_ranks: int) -> None:
    """Files of any number of ranks are read, also of ranks that own nothing, by either folder."""
    folder = write(tmp_path, some_state(), num_ranks)
    assert_same(read_training_state(tmp_path), some_state())
    assert_same(read_training_state(folder), some_state())


def test_the_newest_complete_state_is_read(tmp_path: Path) -> None:
    for step in (5, 10):
        write(tmp_path, some_state(step), 2)
    (tmp_path / "step-000000000010" / "rank-00001-of-00002.state").unlink()
    assert read_training_state(tmp_path).step == 5
    write(tmp_path, some_state(5), 3)
    for folder, what in ((tmp_path, "holds two saves"), (tmp_path / "none", "has no complete training state")):
        with pytest.raises(FormatError, match=what):
            read_training_state(folder)


@pytest.mark.parametrize(("name", "value"), [("run", 1), ("seed", 3), ("beta2", 0.5), ("weight decay", 0.0)])
def test_files_of_two_saves(tmp_path: Path, name: str, value: float) -> None:
    second = write(tmp_path, some_state(), 2) / "rank-00001-of-00002.state"
    StateFile.read(second).with_numbers({name: value}).write(second)
    with pytest.raises(FormatError, match="differ between ranks"):
        read_training_state(tmp_path)


def test_each_tensor_once(tmp_path: Path) -> None:
    folder = write(tmp_path, some_state(), 2)
    first, second = (folder / f"rank-0000{rank}-of-00002.state" for rank in range(2))
    whole = second.read_bytes()
    StateFile.read(first).with_numbers({"rank": 1}).write(second)
    with pytest.raises(FormatError, match="is there twice"):
        read_training_state(tmp_path)
    StateFile(whole).without_tensors({}).write(second)
    with pytest.raises(FormatError, match="a layer of wpe is missing"):
        read_training_state(tmp_path)


GOOD = StateFile(bytes_of(some_state(), 0, 1))
VALUES = BLOCK + len(padded(bytes(5760)))
"""Where wte's m begins."""

DAMAGED: dict[str, Callable[[], StateFile]] = {
    **{
        f"{name} {value}": lambda name=name, value=value: GOOD.with_numbers({name: value})  # type: ignore[misc]
        for name, value in (
            *(("magic", 20240326), ("version", 1), ("version", 3), ("rank", 1), ("number of ranks", 2), ("step", 8)),
            *(("max_seq_len", 0), ("max_seq_len", 5), ("num_heads", 3), ("channels", 2**28), ("vocab_size", 91)),
            *(("number of tensors", -1), ("number of tensors", 2**31 - 1), ("number of tensors", 27)),
            *(("number of batches", -1), ("batch size", 0), ("sequence length", 0), ("matmuls by BLAS", 2)),
        )
    },
    "another parameter": lambda: GOOD.with_entry(0, 16, 0),
    "another layer": lambda: GOOD.with_entry(0, 0, 1),
    "a tensor twice": lambda: GOOD.with_entry(1, 0, 0),
    "another position": lambda: GOOD.with_byte(1024 + 16).sealed(),
    "another checksum": lambda: GOOD.with_byte(1024 + 40 * len(TENSORS)).sealed(),
    **{
        f"zeros at {position}": lambda position=position: GOOD.with_byte(position).sealed()  # type: ignore[misc]
        for position in (44, 128, 1023, 1024 + 52 * len(TENSORS), BLOCK - 1)
    },
    **{
        f"a bit at {position}": lambda position=position: GOOD.with_byte(position)  # type: ignore[misc]
        for position in (104, VALUES, VALUES + 5759, GOOD.size - BLOCK, GOOD.size - BLOCK + 32, GOOD.size - 1)
    },
    **{
        f"{size} bytes": lambda size=size: StateFile(bytes(GOOD.content[:size].ljust(size, b"\0")))  # type: ignore[misc]
        for size in (0, 1023, BLOCK, GOOD.size - BLOCK, GOOD.size - 1, GOOD.size + 1)
    },
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_refused(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, some_state()) / "rank-00000-of-00001.state"
    DAMAGED[damage]().write(path)
    with pytest.raises(FormatError, match=str(path)):
        read_training_state(path.parent)


# ---- The file whose numbers can be changed ----


def test_a_state_file_reads_the_format() -> None:
    state = some_state()
    file = StateFile(bytes_of(state, 1, 3))
    names = ("rank", "number of ranks", "step", "run", "seed", "matmuls by BLAS", "eps")
    assert [file.number(name) for name in names] == [1, 3, state.step, state.run, state.seed, 1, state.eps]
    assert file.values(0, 2) == state.v["wpe"].astype("<f4").tobytes()
    assert file.checksum(0, 2) == zlib.crc32(file.values(0, 2))
    assert (file.word(0), file.word(48)) == (20261121, state.step)
