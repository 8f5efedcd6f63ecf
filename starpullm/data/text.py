"""Text to token ids and back: bytes, or GPT-2's byte pair encoding with llm.c's file of its vocabulary.

Size letter: V vocabulary.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.errors import FormatError, InvalidArgumentError, MissingDependencyError, TokenRangeError
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
        """Return the text's token ids, one-dimensional.

        A byte that Python couldn't decode, which a text of the command line may have, counts as it is;
        `InvalidArgumentError` is raised unless the text then is UTF-8.
        """
        try:
            text = text.encode("utf-8", errors="surrogateescape").decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"text: found {text[:20]!r}, expected UTF-8: {error.reason}") from error
        return np.asarray(self.encode_text(text), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that aren't valid UTF-8 become U+FFFD.

        An id that isn't in [0, V) is a `TokenRangeError`.
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


def text_encoding(tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return GPT-2's byte pair encoding if llm.c's `gpt2_tokenizer.bin` is given, otherwise that of bytes."""
    return byte_encoding() if tokenizer_file is None else gpt2_encoding(tokenizer_file)


def byte_encoding() -> TextEncoding:
    """Return the encoding with one token per byte of UTF-8 and 256 for end of text, V = 257."""
    tokens = [*(bytes([byte]) for byte in range(256)), END_OF_TEXT.encode()]

    def decode(ids: list[int]) -> str:
        return b"".join(tokens[token] for token in ids).decode("utf-8", errors="replace")

    def encode(text: str) -> NDArray[np.uint8]:
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    return TextEncoding("bytes", len(tokens), len(tokens) - 1, encode, decode)


def gpt2_encoding(tokenizer_file: StrPath) -> TextEncoding:
    """Return GPT-2's byte pair encoding by tiktoken, with the vocabulary of llm.c's `gpt2_tokenizer.bin`.

    `MissingDependencyError` is raised if tiktoken isn't installed, `FileError` if the file isn't there, and
    `FormatError` if it isn't a tokenizer, or its tokens aren't a byte pair vocabulary.
    """
    try:
        tiktoken = importlib.import_module("tiktoken")
    except ImportError as error:
        raise MissingDependencyError(
            f"GPT-2's byte pair encoding needs the package tiktoken, which can't be imported: {error}"
        ) from error
    ranks, end_of_text = _ranks_of_file(Path(tokenizer_file))
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=_GPT2_SPLIT,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: end_of_text},
    )
    return TextEncoding("gpt2", len(ranks) + 1, end_of_text, encoding.encode_ordinary, encoding.decode)


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
