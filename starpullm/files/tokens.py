"""llm.c's token file: a sequence of 16-bit token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.errors import InvalidArgumentError, TokenRangeError
from starpullm.files.arrays import SCAN, UINT16, bytes_of, check_ids, first_outside, read_array
from starpullm.files.atomic import atomic_write
from starpullm.files.header import (
    HEADER_BYTES,
    INT32_MAX,
    TOKENS_MAGIC,
    StrPath,
    check_size,
    check_version,
    header_bytes,
    read_header,
    reading,
    refusal,
)

TOKENS_VERSION: Final = 1
MAX_TOKEN_ID: Final = 2**16 - 1
"""The largest id that a token file can contain."""


def read_tokens(path: StrPath, *, mmap: bool = True, vocab_size: int | None = None) -> NDArray[np.uint16]:
    """Read the ids of a token file, one-dimensional; with `mmap` they are a read-only view of the mapped file.

    With `vocab_size`, an id that isn't below it raises `TokenRangeError`; otherwise ids aren't checked.
    """
    with reading(path) as (file, where):
        header = read_header(file, where, TOKENS_MAGIC)
        check_version(header, where, (TOKENS_VERSION,))
        count = header[2]
        if count < 0:
            raise refusal(where, 8, "a number of tokens that isn't negative", str(count))
        check_size(file, where, [("the token ids", 2 * count)])
        ids = read_array(file, where, UINT16, HEADER_BYTES, count, mmap=mmap)
        if vocab_size is not None:
            check_ids(where, ids, HEADER_BYTES, vocab_size)
        return ids


def write_tokens(path: StrPath, tokens: ArrayLike) -> None:
    """Write a token file of ids from 0 to 65535; after a failure an existing file is unchanged.

    `InvalidArgumentError` is raised if `tokens` isn't a sequence of fewer than 2^31 integers, and `TokenRangeError` if
    an id doesn't fit into 16 bits.
    """
    ids = np.asarray(tokens)
    if ids.size == 0:
        ids = ids.astype(UINT16)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"{Path(path)}: expected a one-dimensional array of integer token ids, "
            f"found {ids.ndim} dimensions of {ids.dtype}"
        )
    if ids.size > INT32_MAX:
        raise InvalidArgumentError(f"{Path(path)}: expected at most {INT32_MAX} tokens, found {ids.size}")
    index = first_outside(ids, MAX_TOKEN_ID + 1)
    if index is not None:
        raise TokenRangeError(
            f"{Path(path)}, token {index}: expected an id from 0 to {MAX_TOKEN_ID}, found {ids[index]}"
        )
    with atomic_write(path) as file:
        file.write(header_bytes(TOKENS_MAGIC, TOKENS_VERSION, ids.size))
        for start in range(0, ids.size, SCAN):
            file.write(bytes_of(ids[start : start + SCAN], UINT16))
