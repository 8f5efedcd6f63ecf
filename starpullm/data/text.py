"""Text to token ids and back: GPT-2's byte pair encoding if its vocabulary is on this machine, otherwise bytes.

Size letter: V vocabulary.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.errors import FileError, FormatError, MissingDependencyError, TokenRangeError
from starpullm.files.header import StrPath
from starpullm.files.tokenizer import read_tokenizer


@dataclass(frozen=True)
class TextEncoding:
    """Converts text to token ids and back; ``end_of_text`` separates documents, and no text is encoded to it."""

    name: str
    vocab_size: int
    end_of_text: int
    encode_text: Callable[[str], ArrayLike]
    decode_ids: Callable[[list[int]], str]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the text's token ids, one-dimensional."""
        return np.asarray(self.encode_text(text), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that aren't valid UTF-8 become U+FFFD.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """
        checked = [int(token) for token in ids]
        for position, token in enumerate(checked):
            if not 0 <= token < self.vocab_size:
                raise TokenRangeError(
                    f"token ids, element {position}: expected an id in [0, {self.vocab_size}), found {token}"
                )
        return self.decode_ids(checked)


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

    ``tokenizer_file`` is llm.c's `gpt2_tokenizer.bin`, which has to be used if it is given.
    """
    if tokenizer_file is not None:
        return gpt2_encoding(tokenizer_file)
    try:
        return gpt2_encoding()
    except (FileError, MissingDependencyError):
        return byte_encoding()


def byte_encoding() -> TextEncoding:
    """Return the encoding with one token per byte of UTF-8 and 256 for end of text, V = 257."""
    tokens = [*(bytes([byte]) for byte in range(256)), END_OF_TEXT.encode()]

    def decode(ids: list[int]) -> str:
        return b"".join(tokens[token] for token in ids).decode("utf-8", errors="replace")

    def encode(text: str) -> NDArray[np.uint8]:
        # A lone surrogate can't be encoded in UTF-8; tiktoken replaces it too.
        return np.frombuffer(text.encode("utf-8", errors="replace"), np.uint8)

    return TextEncoding("bytes", len(tokens), len(tokens) - 1, encode, decode)


def gpt2_encoding(tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return GPT-2's byte pair encoding by tiktoken; nothing is downloaded.

    The vocabulary is that of ``tokenizer_file``, llm.c's `gpt2_tokenizer.bin`, or else in tiktoken's cache on the disk.
    `MissingDependencyError` is raised if tiktoken isn't installed, `FileError` if the vocabulary isn't there, and
    `FormatError` if the file isn't a tokenizer, or its tokens aren't a byte pair vocabulary.
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
    return TextEncoding("gpt2", len(ranks) + 1, end_of_text, encoding.encode_ordinary, encoding.decode)


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
