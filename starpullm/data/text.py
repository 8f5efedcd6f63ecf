"""Text to token ids and back: GPT-2's byte pair encoding if its vocabulary is on this machine, otherwise bytes.

Size letter: V vocabulary.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import FileError, FormatError, MissingDependencyError, TokenRangeError
from starpullm.files.header import StrPath
from starpullm.files.tokenizer import read_tokenizer


class TextEncoding(Protocol):
    """Converts text to token ids and back."""

    @property
    def name(self) -> str:
        """`gpt2` or `bytes`."""

    @property
    def vocab_size(self) -> int:
        """V, the number of token ids."""

    @property
    def end_of_text(self) -> int:
        """Id that separates documents; no text is encoded to it."""

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the text's token ids, one-dimensional."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that aren't valid UTF-8 become U+FFFD.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """


END_OF_TEXT: Final = "<|endoftext|>"
"""The text of the end-of-text token."""

# The pattern that was published with GPT-2. It splits text into pieces, and bytes are merged within a piece only.
_GPT2_SPLIT: Final = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
# Names of the files of GPT-2's vocabulary (merges, encoder) in tiktoken's cache, with their SHA-256.
_GPT2_VOCABULARY: Final = {
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee": ("1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6": ("196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
}


def text_encoding(tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return GPT-2's byte pair encoding if its vocabulary is on this machine, otherwise that of bytes.

    Parameters
    ----------
    tokenizer_file
        llm.c's `gpt2_tokenizer.bin`, which has to be used if it is given.

    Raises
    ------
    FormatError, FileError, MissingDependencyError
        If `tokenizer_file` was given and can't be used.
    """
    if tokenizer_file is not None:
        return gpt2_encoding(tokenizer_file)
    try:
        return gpt2_encoding()
    except (FileError, MissingDependencyError):
        return byte_encoding()


def byte_encoding() -> TextEncoding:
    """Return the encoding with one token per byte of UTF-8 and 256 for end of text, V = 257."""
    return _ByteEncoding()


def gpt2_encoding(tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return GPT-2's byte pair encoding by tiktoken; nothing is downloaded.

    Parameters
    ----------
    tokenizer_file
        llm.c's `gpt2_tokenizer.bin`. None: the vocabulary in tiktoken's cache on the disk.

    Raises
    ------
    MissingDependencyError
        If tiktoken isn't installed.
    FileError
        If the file can't be read, or no file is given and tiktoken's cache doesn't contain the vocabulary.
    FormatError
        If the file isn't a tokenizer, or its tokens aren't a byte pair vocabulary.
    """
    tiktoken = _optional_module("tiktoken")
    if tokenizer_file is None:
        ranks = _cached_gpt2_ranks()
        end_of_text = len(ranks)
    else:
        ranks, end_of_text = _ranks_of_file(Path(tokenizer_file))
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=_GPT2_SPLIT,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: end_of_text},
    )
    return _BytePairEncoding(encoding, len(ranks) + 1, end_of_text)


class _ByteEncoding:
    name = "bytes"
    vocab_size = 257
    end_of_text = 256

    def encode(self, text: str) -> NDArray[np.int32]:
        # A lone surrogate can't be encoded in UTF-8; tiktoken replaces it too.
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8).astype(np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        marker = END_OF_TEXT.encode()
        checked = _checked_ids(ids, self.vocab_size)
        parts = (marker if token == self.end_of_text else bytes([token]) for token in checked)
        return b"".join(parts).decode("utf-8", errors="replace")


class _Tiktoken(Protocol):
    """The methods of tiktoken.Encoding that are used here."""

    def encode_ordinary(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class _BytePairEncoding:
    name = "gpt2"

    def __init__(self, encoding: _Tiktoken, vocab_size: int, end_of_text: int) -> None:
        self._encoding = encoding
        self.vocab_size = vocab_size
        self.end_of_text = end_of_text

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.array(self._encoding.encode_ordinary(text), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode(_checked_ids(ids, self.vocab_size))


def _checked_ids(ids: Iterable[int], vocab_size: int) -> list[int]:
    checked = [int(token) for token in ids]
    for position, token in enumerate(checked):
        if not 0 <= token < vocab_size:
            raise TokenRangeError(f"token ids, element {position}: expected an id in [0, {vocab_size}), found {token}")
    return checked


def _optional_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"GPT-2's byte pair encoding needs the package tiktoken, which can't be imported: {error}"
        ) from error


def _ranks_of_file(path: Path) -> tuple[dict[bytes, int], int]:
    """Return the merge rank of each token, which in GPT-2 is its id, and the end-of-text id."""
    tokenizer = read_tokenizer(path)
    ranks: dict[bytes, int] = {}
    for index, token in enumerate(tokenizer.tokens):
        if index == tokenizer.end_of_text:
            continue
        if token in ranks:
            raise FormatError(
                f"{path}: expected the distinct tokens of a byte pair vocabulary, "
                f"found token {index} with the bytes of token {ranks[token]}"
            )
        ranks[token] = index
    for byte in range(256):
        if bytes([byte]) not in ranks:
            raise FormatError(
                f"{path}: expected a byte pair vocabulary with every single byte, found none for {byte:#04x}"
            )
    return ranks, tokenizer.end_of_text


def _cached_gpt2_ranks() -> dict[bytes, int]:
    # Checked first, because tiktoken downloads files that its cache doesn't contain with the right hash.
    directory = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if directory is None:
        directory = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    if not directory or not all(_has_hash(Path(directory), *entry) for entry in _GPT2_VOCABULARY.items()):
        raise FileError(
            f"GPT-2's vocabulary isn't in tiktoken's cache ({directory or 'switched off'}); "
            "give llm.c's gpt2_tokenizer.bin instead",
            errno.ENOENT,
        )
    ranks: dict[bytes, int] = _optional_module("tiktoken_ext.openai_public").gpt2()["mergeable_ranks"]
    return ranks


def _has_hash(directory: Path, name: str, sha256: str) -> bool:
    try:
        return hashlib.sha256((directory / name).read_bytes()).hexdigest() == sha256
    except OSError:
        return False
