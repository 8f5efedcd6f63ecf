"""Tests of text encodings."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from starpullm.data import text as text_module
from starpullm.data.text import TextEncoding, byte_encoding, gpt2_encoding, text_encoding
from starpullm.errors import FileError, FormatError, MissingDependencyError, TokenRangeError
from starpullm.files.tokenizer import Tokenizer

from .file_kinds import write_tokenizer


def test_bytes() -> None:
    """256 byte values and the end of text."""
    encoding = byte_encoding()
    assert (encoding.name, encoding.vocab_size, encoding.end_of_text) == ("bytes", 257, 256)
    assert encoding.decode([72, 256, 105]) == "H<|endoftext|>i"
    assert encoding.encode("é😀").tolist() == list("é😀".encode())
    assert encoding.decode([0xC3]) == "\ufffd"
    assert encoding.encode("\udc80").tolist() == [ord("?")]
    for bad in (-1, 257):
        with pytest.raises(TokenRangeError, match=rf"element 1: .* in \[0, 257\), found {bad}"):
            encoding.decode([0, bad])


MERGES = [b"th", b"the", b" the", b"er", b" S"]
"""What is merged in the small vocabulary of these tests, by rank after the single bytes."""


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer like llm.c's, with the single bytes, a few merges and the end of text."""
    path = tmp_path_factory.mktemp("tokenizer") / "gpt2_tokenizer.bin"
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGES, b"<|endoftext|>"]
    write_tokenizer(path, Tokenizer(tuple(tokens), len(tokens) - 1))
    return path


@pytest.fixture(scope="module")
def small_encoding(tokenizer_file: Path) -> TextEncoding:
    """Byte pair encoding with MERGES."""
    pytest.importorskip("tiktoken")
    return gpt2_encoding(tokenizer_file)


def check_small_encoding(encoding: TextEncoding) -> None:
    """Check what every encoding with MERGES has to do."""
    assert (encoding.name, encoding.vocab_size) == ("gpt2", 256 + len(MERGES) + 1)
    assert encoding.end_of_text == encoding.vocab_size - 1
    # A piece of the split isn't merged with its neighbour, and a space belongs to the word after it.
    ids = encoding.encode("the theSer Se")
    assert ids.dtype == np.int32
    assert [encoding.decode([token]) for token in ids] == ["the", " the", "S", "er", " S", "e"]
    text = "Öl 😀\n\n  the\0"
    assert encoding.decode(encoding.encode(text)) == text
    # Text that looks like the end of text is text.
    marker = encoding.encode("<|endoftext|>").tolist()
    assert encoding.end_of_text not in marker
    assert encoding.decode([*marker, encoding.end_of_text]) == "<|endoftext|><|endoftext|>"
    for bad in (-1, encoding.vocab_size):
        with pytest.raises(TokenRangeError, match="element 0"):
            encoding.decode([bad])


def test_gpt2_from_llm_c_s_file(small_encoding: TextEncoding, tokenizer_file: Path) -> None:
    """Token bytes and ids are all that byte pair encoding needs."""
    check_small_encoding(small_encoding)
    check_small_encoding(text_encoding(tokenizer_file))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([*(bytes([byte]) for byte in range(255)), b"ab", b"!!"], "every single byte, found none for 0xff"),
        (
            [*(bytes([byte]) for byte in range(256)), b"ab", b"ab", b"!!"],
            "token 257 with the bytes of token 256",
        ),
    ],
)
def test_file_that_is_no_byte_pair_vocabulary(tmp_path: Path, tokens: list[bytes], message: str) -> None:
    """A tokenizer file can be right and still be no byte pair vocabulary."""
    pytest.importorskip("tiktoken")
    path = tmp_path / "tokenizer.bin"
    write_tokenizer(path, Tokenizer(tuple(tokens), len(tokens) - 1))
    with pytest.raises(FormatError, match=message):
        gpt2_encoding(path)


def test_named_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that the caller names is never replaced by bytes."""
    pytest.importorskip("tiktoken")
    with pytest.raises(FileError, match="No such file"):
        text_encoding(tmp_path / "none.bin")


def test_without_tiktoken(tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are the answer, unless byte pairs were asked for."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert text_encoding().name == "bytes"
    for encode in (gpt2_encoding, text_encoding):
        with pytest.raises(MissingDependencyError, match="needs the package tiktoken"):
            encode(tokenizer_file)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use of the network fails the test."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def fill_cache(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Put a vocabulary with MERGES where tiktoken caches GPT-2's; return its two files."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    pairs = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b"e", b"r"), (b" ", b"S")]
    assert [left + right for left, right in pairs] == MERGES
    merges = "".join(f"{spelled(left)} {spelled(right)}\n" for left, right in pairs)
    ids = {letter: index for index, letter in enumerate(letters.values())}
    ids |= {spelled(token): 256 + index for index, token in enumerate(MERGES)}
    contents = [f"#version: 0.2\n{merges}".encode(), json.dumps(ids).encode()]
    vocabulary = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in zip(text_module._GPT2_VOCABULARY, contents, strict=True)
    }
    monkeypatch.setattr(text_module, "_GPT2_VOCABULARY", vocabulary)
    files = [directory / name for name in vocabulary]

    # tiktoken knows the real vocabulary's hashes; it shall accept this one's, and do all else as always.
    public = pytest.importorskip("tiktoken_ext.openai_public")
    read_files = public.data_gym_to_mergeable_bpe_ranks

    def read_small_files(*, vocab_bpe_file: str, encoder_json_file: str, **_: object) -> dict[bytes, int]:
        ranks: dict[bytes, int] = read_files(vocab_bpe_file, encoder_json_file, *vocabulary.values())
        return ranks

    monkeypatch.setattr(public, "data_gym_to_mergeable_bpe_ranks", read_small_files)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", None])
def test_cached_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """What tiktoken has on disk is used, wherever tiktoken looks for it."""
    pytest.importorskip("tiktoken")
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    directory = tmp_path / "data-gym-cache"
    directory.mkdir()
    if variable is None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    else:
        monkeypatch.setenv(variable, str(directory))
    fill_cache(directory, monkeypatch)
    check_small_encoding(gpt2_encoding())
    check_small_encoding(text_encoding())


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("damage", ["empty", "one missing", "other content", "switched off"])
def test_no_cached_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Where the cache hasn't got the vocabulary nothing is downloaded and nothing deleted."""
    pytest.importorskip("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "" if damage == "switched off" else str(tmp_path))
    files = fill_cache(tmp_path, monkeypatch)
    if damage == "empty":
        for file in files:
            file.unlink()
    elif damage == "one missing":
        files[1].unlink()
    elif damage == "other content":
        files[0].write_bytes(files[0].read_bytes() + b"\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FileError, match=r"vocabulary isn't in tiktoken's cache .* gpt2_tokenizer\.bin") as caught:
        gpt2_encoding()
    assert caught.value.errno == errno.ENOENT
    assert text_encoding().name == "bytes"
    assert sorted(tmp_path.iterdir()) == before
