"""Tests of reading and writing training states: round trips, the format's bytes, every kind of damage.

The native library has a reader and a writer of its own (ctest training_state).
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.errors import FileError, FormatError
from starpullm.files.model import ModelConfig, parameter_shapes

from ..native.readers.training_state import TrainingStateContents, read_training_state

BLOCK = 4096
CONFIG = ModelConfig(max_seq_len=4, vocab_size=85, num_layers=2, num_heads=2, channels=16, padded_vocab_size=90)
LAYERED = [name for name, shape in parameter_shapes(CONFIG).items() if name not in ("wte", "wpe", "lnfw", "lnfb")]
TENSORS = [
    (name, layer) for name in parameter_shapes(CONFIG) for layer in range(CONFIG.num_layers if name in LAYERED else 1)
]
NUMBERS = ("step", "run", "batches", "batch_size", "seq_len", "seed", "data_id")
RATES = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")


def some_tensors(seed: int) -> dict[str, NDArray[np.float32]]:
    """Arrays with bits of all kinds, NaN and subnormals included."""
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 2**32, shape, np.uint32).view(np.float32)
        for name, shape in parameter_shapes(CONFIG).items()
    }


def some_state(step: int = 7, **changes: Any) -> TrainingStateContents:
    state = TrainingStateContents(
        CONFIG,
        step=step,
        batches=5 * 2**32 + 1,
        batch_size=4,
        seq_len=3,
        params=some_tensors(3 * step),
        m=some_tensors(3 * step + 1),
        v=some_tensors(3 * step + 2),
        **{name: float(np.float32(rate)) for name, rate in zip(RATES, (1e-4, 0.9, 0.999, 1e-8, 0.01), strict=True)},
        run=0xFEDCBA9876543210,
        seed=-7,
        data_id=0x8000000000000001,
        blas=1,
    )
    return replace(state, **changes)


def assert_same(left: TrainingStateContents, right: TrainingStateContents) -> None:
    for field in fields(TrainingStateContents):
        found, expected = getattr(left, field.name), getattr(right, field.name)
        if field.name in ("params", "m", "v"):
            assert list(found) == list(expected)
            assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
        else:
            assert found == expected


def file_of(root: Path, step: int = 7, rank: int = 0, num_ranks: int = 1) -> Path:
    return root / f"step-{step:012}" / f"rank-{rank:05}-of-{num_ranks:05}.state"


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
    header += struct.pack("<qQqqqqQ", *(getattr(state, name) for name in NUMBERS))
    header += struct.pack("<5f", *(getattr(state, name) for name in RATES))
    header += struct.pack("<i", state.blas)
    header = header.ljust(1024, b"\0")
    position = len(padded(bytes(1024 + 52 * len(owned))))
    values = checksums = b""
    for name, layer in owned:
        parts = []
        for group in (state.params, state.m, state.v):
            parts.append((group[name][layer] if name in LAYERED else group[name]).astype("<f4").tobytes())
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


def write_training_state(root: Path, state: TrainingStateContents, *, num_ranks: int = 1) -> Path:
    folder = root / f"step-{state.step:012}"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(num_ranks):
        file_of(root, state.step, rank, num_ranks).write_bytes(bytes_of(state, rank, num_ranks))
    return folder


def patched(position: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + value.to_bytes(4, "little") + data[position + 4 :]


# ---- What is written is read ----


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 30])
def test_ranks(tmp_path: Path, num_ranks: int) -> None:
    """Files of any number of ranks are read, also of ranks that own nothing, by either folder."""
    folder = write_training_state(tmp_path, some_state(), num_ranks=num_ranks)
    assert_same(read_training_state(tmp_path), some_state())
    assert_same(read_training_state(folder), some_state())


@given(
    step=st.integers(0, 2**63 - 1),
    run=st.integers(0, 2**64 - 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    eps=st.floats(width=32, allow_nan=False),
    num_ranks=st.integers(1, 4),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, step: int, run: int, seed: int, eps: float, num_ranks: int
) -> None:
    """Numbers at the ends of their ranges come back."""
    root = tmp_path_factory.mktemp("states")
    state = replace(some_state(), step=step, run=run, seed=seed, eps=eps)
    write_training_state(root, state, num_ranks=num_ranks)
    assert_same(read_training_state(root), state)
    shutil.rmtree(root)


# ---- Which state is read ----


def test_newest_complete(tmp_path: Path) -> None:
    """States that lack a file, or have a damaged one, are passed over."""
    for step in (5, 10, 200):
        write_training_state(tmp_path, some_state(step), num_ranks=2)
    (tmp_path / "step-0000000000300").mkdir()  # not one of our names
    (tmp_path / "step-300").mkdir()
    assert read_training_state(tmp_path).step == 200
    file_of(tmp_path, 200, 1, 2).unlink()
    (tmp_path / "step-000000000200" / ".rank-00001-of-00002.tmp").touch()
    assert read_training_state(tmp_path).step == 10
    os.truncate(file_of(tmp_path, 10, 0, 2), 100)
    assert read_training_state(tmp_path).step == 5
    file_of(tmp_path, 5, 0, 2).unlink()
    with pytest.raises(
        FormatError, match=r"complete training state, found none \(the newest: .*step-000000000200: .*1 of 2"
    ):
        read_training_state(tmp_path)


def test_no_state(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"found no folder named like step-000000000000$"):
        read_training_state(tmp_path)
    (tmp_path / "step-000000000001").mkdir()
    with pytest.raises(FormatError, match=r"expected the files of all ranks, found none$"):
        read_training_state(tmp_path / "step-000000000001")
    with pytest.raises(FileError, match="can't be listed: No such file") as caught:
        read_training_state(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT


def test_two_saves_in_one_folder(tmp_path: Path) -> None:
    """What is left of another number of ranks doesn't matter, unless it is complete."""
    write_training_state(tmp_path, some_state(), num_ranks=2)
    write_training_state(tmp_path, some_state(), num_ranks=3)
    with pytest.raises(FormatError, match="expected the files of one save, found those of 2 and of 3 ranks"):
        read_training_state(tmp_path)
    file_of(tmp_path, 7, 0, 2).unlink()
    assert_same(read_training_state(tmp_path), some_state())


def test_folder_of_another_name(tmp_path: Path) -> None:
    write_training_state(tmp_path, some_state()).rename(tmp_path / "best")
    assert_same(read_training_state(tmp_path / "best"), some_state())


@pytest.mark.parametrize(
    ("name", "value", "position"),
    [
        ("run", 1, 56),
        ("batches", 2, 64),
        ("seed", 3, 88),
        ("beta2", 0.5, 112),
        ("weight_decay", 0.0, 120),
        ("blas", 0, 124),
    ],
)
def test_files_of_two_saves(tmp_path: Path, name: str, value: Any, position: int) -> None:
    write_training_state(tmp_path / "other", some_state(**{name: value}), num_ranks=2)
    write_training_state(tmp_path, some_state(), num_ranks=2)
    shutil.copy(file_of(tmp_path / "other", 7, 1, 2), file_of(tmp_path, 7, 1, 2))
    with pytest.raises(
        FormatError, match=rf"rank-00001-of-00002\.state, byte {position}: expected {name} .*, found {value}"
    ):
        read_training_state(tmp_path)


def test_each_tensor_once(tmp_path: Path) -> None:
    write_training_state(tmp_path, some_state(), num_ranks=3)
    content = bytes_of(some_state(), 0, 3)
    other = patched(8 * 4, 1)(content)
    # Rank 1 with rank 0's tensors: everything fits but that.
    begin = 4096
    end = bytearray(other[-BLOCK:])
    end[24:28] = (1).to_bytes(4, "little")
    end[32:40] = fnv1a(other[:begin]).to_bytes(8, "little")
    file_of(tmp_path, 7, 1, 3).write_bytes(other[:-BLOCK] + bytes(end))
    with pytest.raises(FormatError, match=r"each tensor once, found wte\[0\] as in rank 0's"):
        read_training_state(tmp_path)


def test_missing_tensors(tmp_path: Path) -> None:
    """Rank 0 of 2 alone, made to say that it is all."""
    content = bytes_of(some_state(), 0, 2)
    header = patched(36, 1)(content[:BLOCK])
    end = bytearray(content[-BLOCK:])
    end[28:32] = (1).to_bytes(4, "little")
    end[32:40] = fnv1a(header).to_bytes(8, "little")
    path = file_of(tmp_path)
    path.parent.mkdir()
    path.write_bytes(header + content[BLOCK:-BLOCK] + bytes(end))
    with pytest.raises(FormatError, match="expected the model's 28 tensors, found 14"):
        read_training_state(tmp_path)


# ---- Damage ----

SIZE = len(bytes_of(some_state(), 0, 1))


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (0, 20240326, r"byte 0: expected magic 20261121 \(training state\), found 20240326 \(model checkpoint\)"),
        (4, 1, "byte 4: expected version 2, found version 1"),
        (4, 3, "byte 4: expected version 2, found version 3"),
        (8, 0, "byte 8: expected max_seq_len to be from 1"),
        (20, 3, "byte 24: expected channels to be divisible by num_heads = 3"),
        (8, 5, "the entry .* 80"),
        (32, 1, "byte 32: expected rank 0, found 1"),
        (36, 2, "byte 36: expected num_ranks 1, found 2"),
        (40, 2**32 - 1, "byte 40: expected tensors to be from 0 to 2147483647, found -1"),
        (40, 2**31 - 1, "the end of the file"),
        (40, 27, "12288 more bytes"),
        (48, 8, "byte 48: expected step 7, found 8"),
        (52, 2**32 - 1, "byte 48: expected step to be from 0 to 9223372036854775807, found -"),
        (72, 0, "byte 72: expected batch_size to be from 1 to 9223372036854775807, found 0"),
        (124, 2, "byte 124: expected blas to be from 0 to 1, found 2"),
        (104, 0, "an end that goes with the header"),
        (1020, 1, "zeros wherever header and table have no number"),
        (1024, 16, "byte 1024: expected a parameter from 0 to 15, found 16"),
        (1028, 1, "byte 1028: expected a layer from 0 to 0, found 1"),
        (1064, 0, r"byte 1064: expected each tensor once, found wte\[0\] again"),
        (1048, 0, "byte 1024: expected the entry"),
        (SIZE - BLOCK, 0, "an end that goes with the header"),
        (SIZE - 4, 1, "an end that goes with the header"),
    ],
)
def test_damaged(tmp_path: Path, position: int, value: int, text: str) -> None:
    path = file_of(tmp_path)
    write_training_state(tmp_path, some_state())
    path.write_bytes(patched(position, value)(path.read_bytes()))
    with pytest.raises(FormatError, match=text) as caught:
        read_training_state(path.parent)
    assert str(caught.value).startswith(f"{path}, byte ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bit", [0, 7, 8 * 5760 - 1])
def test_flipped_bit(tmp_path: Path, bit: int) -> None:
    """A bit of wte's m, the values after its params; no older state is taken instead."""
    path = file_of(tmp_path)
    write_training_state(tmp_path, some_state(5))
    write_training_state(tmp_path, some_state())
    content = bytearray(path.read_bytes())
    position = BLOCK + len(padded(bytes(5760)))
    content[position + bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(FormatError, match=rf"state, byte {position}: expected m of wte\[0\] to have the checksum 0x"):
        read_training_state(tmp_path)


@pytest.mark.parametrize(("position", "value"), [(8, 2**31 - 1), (16, 2**30), (24, 2**28), (28, 2**31 - 1)])
def test_model_larger_than_its_files(tmp_path: Path, position: int, value: int) -> None:
    """Sizes whose tensors, or their positions in a file, fit neither into memory nor into 64 bits."""
    path = file_of(tmp_path)
    write_training_state(tmp_path, some_state())
    path.write_bytes(patched(position, value)(path.read_bytes()))
    with pytest.raises(FormatError, match="expected files of at least"):
        read_training_state(path.parent)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, BLOCK - 1, BLOCK, SIZE - BLOCK, SIZE - 1, SIZE + 1])
def test_another_size(tmp_path: Path, size: int) -> None:
    path = file_of(tmp_path)
    write_training_state(tmp_path, some_state())
    os.truncate(path, size)
    with pytest.raises(FormatError, match=r"the end of the file|expected files of at least"):
        read_training_state(path.parent)


@pytest.mark.parametrize("position", [44, 128, 1020, 1024 + 52 * len(TENSORS), BLOCK - 4])
def test_space_of_no_number(tmp_path: Path, position: int) -> None:
    """It holds zeros, also where the end goes with it."""
    path = file_of(tmp_path)
    write_training_state(tmp_path, some_state())
    start = patched(position, 1)(path.read_bytes())[:BLOCK]
    content = bytearray(start + path.read_bytes()[BLOCK:])
    content[SIZE - BLOCK + 32 : SIZE - BLOCK + 40] = fnv1a(start).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(FormatError, match="zeros wherever header and table have no number"):
        read_training_state(path.parent)


def test_killed_while_it_reserved_space(tmp_path: Path) -> None:
    """A file of the right size whose end was never written."""
    path = file_of(tmp_path)
    write_training_state(tmp_path, some_state())
    path.write_bytes(path.read_bytes()[:-BLOCK] + bytes(BLOCK))
    with pytest.raises(FormatError, match="one of the two is damaged"):
        read_training_state(path.parent)
