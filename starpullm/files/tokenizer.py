"""llm.c's tokenizer file: the bytes of every token id."""

from __future__ import annotations

from typing import Final, NamedTuple

from starpullm.files.header import (
    HEADER_BYTES,
    StrPath,
    check_end,
    check_version,
    file_size,
    read_header,
    reading,
    refusal,
)
from starpullm.files.kinds import TOKENIZER

TOKENIZER_VERSIONS: Final = (1, 2)
GPT2_END_OF_TEXT: Final = 50256
"""The end-of-text id of a version 1 tokenizer, which has 50257 tokens; version 2 stores it."""
_MAX_TOKEN_BYTES: Final = 255


class Tokenizer(NamedTuple):
    """The bytes of every token id, 1 to 255 each, and the id of the end of text."""

    tokens: tuple[bytes, ...]
    end_of_text: int


def read_tokenizer(path: StrPath) -> Tokenizer:
    """Read a tokenizer of version 1 or 2."""
    with reading(path, TOKENIZER) as (file, where):
        header = read_header(file, where, TOKENIZER)
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
        return Tokenizer(tuple(tokens), end_of_text)
