"""Tests of reading and writing tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starpullm.errors import FormatError
from starpullm.files.header import HEADER_BYTES
from starpullm.files.tokenizer import Tokenizer, read_tokenizer

from .file_kinds import TOKENIZER, patch_int32, write_tokenizer


@given(
    tokens=st.lists(st.binary(min_size=1, max_size=255), min_size=1, max_size=30),
    choice=st.integers(0, 10**6),
)
def test_tokenizer_round_trip(tmp_path_factory: pytest.TempPathFactory, tokens: list[bytes], choice: int) -> None:
    """What is written is read."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.bin"
    tokenizer = Tokenizer(tuple(tokens), choice % len(tokens))
    write_tokenizer(path, tokenizer)
    assert read_tokenizer(path) == tokenizer


def test_version_1_implies_end_of_text(tmp_path: Path) -> None:
    """A version 1 file has no end-of-text id; it is GPT-2's."""
    path = tmp_path / "gpt2_tokenizer.bin"
    tokens = (*(f"t{index}".encode() for index in range(50256)), b"<|endoftext|>")
    write_tokenizer(path, Tokenizer(tokens, 50256), version=1)
    assert read_tokenizer(path) == (tokens, 50256)


def test_version_1_of_another_size(tmp_path: Path) -> None:
    """50256 is only right for GPT-2's own vocabulary."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    patch_int32(path, 1, 1)
    with pytest.raises(FormatError, match=r"byte 8: expected 50257 tokens in a version 1 tokenizer, found 4"):
        read_tokenizer(path)


@pytest.mark.parametrize(("index", "value"), [(2, 0), (2, -1), (3, 4), (3, -1)])
def test_tokenizer_of_bad_counts(tmp_path: Path, index: int, value: int) -> None:
    """The number of tokens is positive and the end-of-text id one of them."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    patch_int32(path, index, value)
    with pytest.raises(FormatError, match=rf"byte {4 * index}: expected .*, found {value}$"):
        read_tokenizer(path)


def test_tokenizer_that_promises_too_much(tmp_path: Path) -> None:
    """A count of two billion doesn't make the reader ask for the memory of it."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    patch_int32(path, 2, 2**31 - 1)
    with pytest.raises(FormatError, match="expected token 4 of 2147483647, found the end of the file"):
        read_tokenizer(path)


def test_token_without_bytes(tmp_path: Path) -> None:
    """A token of length 0 is refused where it stands."""
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, TOKENIZER)
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + 2] = 0
    path.write_bytes(content)
    with pytest.raises(FormatError, match=f"byte {HEADER_BYTES + 2}: expected token 1 to have 1 to 255 bytes"):
        read_tokenizer(path)
