"""Arrays in files: reading, mapping and writing them, and looking for ids."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm.files.header import refusal

_Scalar = TypeVar("_Scalar", bound=np.generic)
SCAN: Final = 1 << 22  # ids at a time (8 MB), so that a scan of a mapped file needs little memory
UINT16: Final = np.dtype("<u2")
FLOAT32: Final = np.dtype("<f4")
DAMAGED_ARCHIVE: Final = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, SyntaxError),
    *(OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, OverflowError),
)
"""What `zipfile` and NumPy raise while they read a damaged archive of arrays."""


def bytes_of(array: NDArray[np.generic], dtype: np.dtype[np.generic]) -> memoryview:
    """Return the bytes of an array in this dtype, row-major, as in the file."""
    return np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data


def read_array(
    file: BinaryIO, where: Path, dtype: np.dtype[_Scalar], position: int, count: int, *, mmap: bool
) -> NDArray[_Scalar]:
    """Read `count` values from a byte position on, as a one-dimensional array; with `mmap` it is mapped."""
    if count == 0:
        return np.empty(0, dtype)
    if mmap:
        return np.asarray(np.memmap(file, dtype, mode="r", offset=position, shape=(count,)))
    file.seek(position)
    array = np.fromfile(file, dtype, count)
    if array.size < count:
        raise refusal(where, position + array.nbytes, f"{count} values", "the end of the file")
    return array


def first_outside(ids: NDArray[np.integer], limit: int) -> int | None:
    """Return the row-major index of the first id that isn't in [0, limit), or None."""
    flat = ids.reshape(-1)
    for start in range(0, flat.size, SCAN):
        chunk = flat[start : start + SCAN]
        if int(chunk.max()) >= limit or int(chunk.min()) < 0:
            return start + int(np.argmax((chunk >= limit) | (chunk < 0)))
    return None
