"""Tests of text encodings."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from starpullm.commands import main
from starpullm.data.text import TextEncoding, byte_encoding, gpt2_encoding, text_encoding
from starpullm.errors import FileError, FormatError, InvalidArgumentError, MissingDependencyError, TokenRangeError
from starpullm.files.tokenizer import Tokenizer
from starpullm.files.tokens import read_tokens

from .file_kinds import write_tokenizer


def test_bytes() -> None:
    """256 byte values and the end of text."""
    encoding = byte_encoding()
    assert (encoding.name, encoding.vocab_size, encoding.end_of_text) == ("bytes", 257, 256)
    assert encoding.decode([72, 256, 105]) == "H<|endoftext|>i"
    assert encoding.encode("é😀").tolist() == list("é😀".encode())
    assert encoding.decode([0xC3]) == "\ufffd"
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


@pytest.mark.parametrize("encode", ["bytes", "gpt2"])
def test_bytes_that_the_locale_can_not_decode(request: pytest.FixtureRequest, encode: str) -> None:
    """They are text if they are UTF-8, and refused otherwise, never replaced."""
    encoding = byte_encoding() if encode == "bytes" else request.getfixturevalue("small_encoding")
    as_it_is = "Öl".encode().decode("ascii", "surrogateescape")
    assert encoding.encode(as_it_is).tolist() == encoding.encode("Öl").tolist()
    for bad in ("\udce9", "a\ud800"):
        with pytest.raises(InvalidArgumentError, match=r"text: found '.*expected UTF-8: "):
            encoding.encode(bad)


def test_gpt2_from_llm_c_s_file(small_encoding: TextEncoding, tokenizer_file: Path) -> None:
    """Token bytes and ids are all that byte pair encoding needs."""
    check_small_encoding(small_encoding)
    check_small_encoding(text_encoding(tokenizer_file))


def test_tokenize_separates_texts(small_encoding: TextEncoding, tokenizer_file: Path, tmp_path: Path) -> None:
    """By the tokenizer's end-of-text token; no byte is lost."""
    texts = {tmp_path / "a.txt": "the\r\n Se\r", tmp_path / "b.txt": "<|endoftext|>"}
    for path, text in texts.items():
        path.write_bytes(text.encode())
    out = tmp_path / "out.bin"
    done = CliRunner().invoke(main, ["tokenize", *map(str, texts), str(out), "--tokenizer", str(tokenizer_file)])
    assert done.exit_code == 0, done.output
    parts = [[small_encoding.end_of_text, *small_encoding.encode(text)] for text in texts.values()]
    assert read_tokens(out).tolist() == [token for part in parts for token in part]
    assert small_encoding.decode(read_tokens(out)[1:-1]).startswith("the\r\n Se\r<|endoftext|>")


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
