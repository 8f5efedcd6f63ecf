"""llm.c's token file: a sequence of 16-bit token ids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.errors import InvalidArgumentError, TokenRangeError
from starpullm.files.arrays import SCAN, UINT16, bytes_of, first_outside
from starpullm.files.atomic import atomic_write
from starpullm.files.header import (
    HEADER_BYTES,
    INT32_MAX,
    StrPath,
    check_size,
    check_version,
    file_errors,
    header_bytes,
    read_header,
    reading,
    refusal,
)
from starpullm.files.kinds import TOKENS

TOKENS_VERSION: Final = 1
MAX_TOKEN_ID: Final = 2**16 - 1
"""The largest id that a token file can contain."""


class TokenFile:
    """A token file that is open, and whose ids are read when they are needed.

    It isn't mapped: a process that reads a mapped page ends by SIGBUS if another one has truncated the file.

    Parameters
    ----------
    path
        The token file.

    Raises
    ------
    FormatError, FileError
        If it isn't a token file, or can't be read.
    """

    def __init__(self, path: StrPath) -> None:
        with reading(path, TOKENS) as (file, where):
            header = read_header(file, where, TOKENS)
            check_version(header, where, (TOKENS_VERSION,))
            count = header[2]
            if count < 0:
                raise refusal(where, 8, "a number of tokens that isn't negative", str(count))
            check_size(file, where, [("the token ids", 2 * count)])
            self.path = where
            self.count = count
            """Number of ids."""
            self._descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, first: int, count: int) -> NDArray[np.uint16]:
        """Return `count` ids from number `first` on, one-dimensional.

        Raises
        ------
        FormatError, FileError
            If the file has become shorter since it was opened, or can't be read.
        """
        ids = np.empty(count, UINT16)
        room, position = bytes_of(ids, UINT16), HEADER_BYTES + UINT16.itemsize * first
        with file_errors(self.path):
            while room:
                found = os.pread(self._descriptor, len(room), position)
                if not found:
                    expected = f"{self.count} tokens as when the file was opened"
                    raise refusal(self.path, position, expected, "the end of the file")
                room[: len(found)] = found
                room, position = room[len(found) :], position + len(found)
        return ids

    def pieces(self) -> Iterator[NDArray[np.uint16]]:
        """Yield all ids in pieces that need little memory; errors as `read`."""
        for first in range(0, self.count, SCAN):
            yield self.read(first, min(SCAN, self.count - first))

    def check_ids(self, vocab_size: int) -> None:
        """Raise `TokenRangeError` if an id isn't below `vocab_size`; other errors as `read`."""
        position = HEADER_BYTES
        for piece in self.pieces():
            index = first_outside(piece, vocab_size)
            if index is not None:
                byte = position + UINT16.itemsize * index
                expected = f"a token id in [0, {vocab_size})"
                raise TokenRangeError(f"{self.path}, byte {byte}: expected {expected}, found {piece[index]}")
            position += piece.nbytes


def read_tokens(path: StrPath) -> NDArray[np.uint16]:
    """Read all ids of a token file, one-dimensional; errors are those of `TokenFile`."""
    file = TokenFile(path)
    return file.read(0, file.count)


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
        file.write(header_bytes(TOKENS, TOKENS_VERSION, ids.size))
        for start in range(0, ids.size, SCAN):
            file.write(bytes_of(ids[start : start + SCAN], UINT16))
