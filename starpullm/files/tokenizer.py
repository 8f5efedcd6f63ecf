"""llm.c's tokenizer file: the bytes of every token id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starpullm.errors import InvalidArgumentError, TokenRangeError
from starpullm.files.atomic import atomic_write
from starpullm.files.header import (
    HEADER_BYTES,
    TOKENIZER_MAGIC,
    StrPath,
    check_end,
    check_version,
    file_size,
    header_bytes,
    read_header,
    reading,
    refusal,
)

TOKENIZER_VERSIONS: Final = (1, 2)
GPT2_END_OF_TEXT: Final = 50256
"""The end-of-text id that a version 1 tokenizer implies."""
_MAX_TOKEN_BYTES: Final = 255


@dataclass(frozen=True)
class Tokenizer:
    """The bytes of every token id, for decoding; llm.c's file doesn't allow encoding.

    Parameters
    ----------
    tokens
        The bytes of each token, 1 to 255 bytes.
    end_of_text
        Id of the end-of-text token.
    version
        Version of the file: version 2 stores `end_of_text`; version 1 has 50257 tokens and implies 50256.

    Raises
    ------
    InvalidArgumentError
        If a token has no bytes or too many, or the version or the end-of-text id is wrong.
    """

    tokens: tuple[bytes, ...]
    end_of_text: int
    version: int = 2

    def __post_init__(self) -> None:
        """Check that a tokenizer file can contain these tokens."""
        if self.version not in TOKENIZER_VERSIONS:
            raise InvalidArgumentError(f"tokenizer, version: expected 1 or 2, found {self.version}")
        implied = (GPT2_END_OF_TEXT + 1, GPT2_END_OF_TEXT)
        found = (len(self.tokens), self.end_of_text)
        if self.version == 1 and found != implied:
            raise InvalidArgumentError(
                f"tokenizer, version 1: expected {implied[0]} tokens and end-of-text {implied[1]}, "
                f"found {found[0]} and {found[1]}"
            )
        if not 0 <= self.end_of_text < len(self.tokens):
            raise InvalidArgumentError(
                f"tokenizer, end of text: expected an id in [0, {len(self.tokens)}), found {self.end_of_text}"
            )
        for index, token in enumerate(self.tokens):
            if not 1 <= len(token) <= _MAX_TOKEN_BYTES:
                raise InvalidArgumentError(
                    f"tokenizer, token {index}: expected 1 to {_MAX_TOKEN_BYTES} bytes, found {len(token)}"
                )

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return len(self.tokens)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the concatenated bytes of the ids.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """
        parts = []
        for position, token in enumerate(ids):
            if not 0 <= token < len(self.tokens):
                raise TokenRangeError(
                    f"token ids, element {position}: expected an id in [0, {len(self.tokens)}), found {token}"
                )
            parts.append(self.tokens[token])
        return b"".join(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that aren't valid UTF-8 become U+FFFD.

        Raises
        ------
        TokenRangeError
            If an id isn't in [0, V).
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")


def read_tokenizer(path: StrPath) -> Tokenizer:
    """Read a tokenizer of version 1 or 2.

    Raises
    ------
    FormatError
        If the header, the length of a token or the size of the file is wrong.
    FileError
        If the file can't be read.
    """
    with reading(path) as (file, where):
        header = read_header(file, where, TOKENIZER_MAGIC)
        version = check_version(header, where, TOKENIZER_VERSIONS)
        count = header[2]
        if count < 1:
            raise refusal(where, 8, "a positive number of tokens", str(count))
        if version == 1 and count != GPT2_END_OF_TEXT + 1:
            raise refusal(where, 8, f"{GPT2_END_OF_TEXT + 1} tokens in a version 1 tokenizer", str(count))
        end_of_text = header[3] if version == 2 else GPT2_END_OF_TEXT
        if not 0 <= end_of_text < count:
            raise refusal(where, 12, f"an end-of-text id in [0, {count})", str(end_of_text))
        body = file.read(min(file_size(file), count * (1 + _MAX_TOKEN_BYTES)))
        tokens = []
        position = 0
        for index in range(count):
            offset = HEADER_BYTES + position
            if position == len(body):
                raise refusal(where, offset, f"token {index} of {count}", "the end of the file")
            length = body[position]
            if length == 0:
                raise refusal(where, offset, f"token {index} to have 1 to {_MAX_TOKEN_BYTES} bytes", "0")
            token = body[position + 1 : position + 1 + length]
            if len(token) < length:
                raise refusal(
                    where,
                    HEADER_BYTES + len(body),
                    f"token {index} of {count} to have {length} bytes",
                    f"the end of the file after {len(token)}",
                )
            tokens.append(token)
            position += 1 + length
        check_end(file, where, HEADER_BYTES + position)
        return Tokenizer(tuple(tokens), end_of_text, version)


def write_tokenizer(path: StrPath, tokenizer: Tokenizer) -> None:
    """Write a tokenizer in its own version; after a failure an existing file is unchanged.

    Raises
    ------
    FileError
        If the file can't be written.
    """
    extra = (tokenizer.end_of_text,) if tokenizer.version == 2 else ()
    with atomic_write(path) as file:
        file.write(header_bytes(TOKENIZER_MAGIC, tokenizer.version, tokenizer.vocab_size, *extra))
        file.write(b"".join(bytes([len(token)]) + token for token in tokenizer.tokens))
