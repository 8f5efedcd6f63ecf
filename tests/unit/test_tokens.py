"""Tests of reading and writing token files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.errors import FormatError, InvalidArgumentError, TokenRangeError
from starpullm.files.header import HEADER_BYTES
from starpullm.files.tokens import TokenFile, read_tokens, write_tokens

from .file_kinds import patch_int32


@given(tokens=st.lists(st.integers(0, 65535), max_size=300))
def test_tokens_round_trip(tmp_path_factory: pytest.TempPathFactory, tokens: list[int]) -> None:
    """What is written is read."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, tokens)
    assert read_tokens(path).tolist() == tokens
    assert np.frombuffer(path.read_bytes(), "<i4", 3).tolist() == [20240520, 1, len(tokens)]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint64])
def test_tokens_of_any_integer_type(tmp_path: Path, dtype: type[np.integer]) -> None:
    """Arrays of all integer types are written as 16 bits."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, np.array([0, 7, 65535], dtype))
    assert read_tokens(path).tolist() == [0, 7, 65535]


@pytest.mark.parametrize("bad", [65536, -1, 2**40])
def test_ids_that_do_not_fit(tmp_path: Path, bad: int) -> None:
    """Ids beyond 16 bits are refused with their position, and no file appears."""
    path = tmp_path / "tokens.bin"
    with pytest.raises(TokenRangeError, match=rf"token 2: expected an id from 0 to 65535, found {bad}$"):
        write_tokens(path, [1, 2, bad, -5])
    assert not path.exists()


@pytest.mark.parametrize("bad", [[[1, 2]], [1.5], 3, ["a"], [2**70]])
def test_tokens_that_are_none(tmp_path: Path, bad: object) -> None:
    """Only one-dimensional integers are tokens."""
    with pytest.raises(InvalidArgumentError, match="one-dimensional array of integer token ids"):
        write_tokens(tmp_path / "tokens.bin", np.asarray(bad))


def test_a_late_id_beyond_the_vocabulary(tmp_path: Path) -> None:
    """The scan goes through the whole file, piece by piece."""
    path = tmp_path / "tokens.bin"
    ids = np.zeros(9_000_000, np.uint16)
    ids[-1] = 7
    write_tokens(path, ids)
    with pytest.raises(TokenRangeError, match=rf"byte {1024 + 2 * 8_999_999}: .*, found 7$"):
        TokenFile(path).check_ids(7)


def test_negative_count(tmp_path: Path) -> None:
    """A negative number of tokens is refused."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, [1])
    patch_int32(path, 2, -1)
    with pytest.raises(FormatError, match="byte 8: expected a number of tokens that isn't negative, found -1"):
        read_tokens(path)


@pytest.mark.parametrize("size", [0, HEADER_BYTES, HEADER_BYTES + 5])
def test_a_file_that_is_truncated_while_it_is_open(tmp_path: Path, size: int) -> None:
    """What is left of it is read; the end of the file is named with its byte."""
    path = tmp_path / "tokens.bin"
    write_tokens(path, range(10_000))
    file = TokenFile(path)
    os.truncate(path, size)
    with pytest.raises(FormatError) as caught:
        file.read(0, 10_000)
    end = max(size, HEADER_BYTES)
    expected = f"{path}, byte {end}: expected 10000 tokens as when the file was opened, found the end of the file"
    assert str(caught.value) == expected
