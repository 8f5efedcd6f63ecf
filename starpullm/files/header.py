"""What all five formats share: the header of 256 int32, opening a file for reading, and how a wrong byte is refused.

Every file is little-endian and starts with magic, version, then the format's own counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import numpy as np

from starpullm.errors import (
    FileError,
    FormatError,
    OutOfMemoryError,
    StarpullmError,
)

__all__ = [
    "CHECKPOINT_MAGIC",
    "DEBUG_STATE_MAGIC",
    "HEADER_BYTES",
    "HEADER_INTS",
    "INT32",
    "INT32_MAX",
    "TOKENIZER_MAGIC",
    "TOKENS_MAGIC",
    "TRAINING_STATE_MAGIC",
    "StrPath",
    "check_end",
    "check_size",
    "check_version",
    "file_size",
    "header_bytes",
    "read_header",
    "reading",
    "reason",
    "refusal",
]

StrPath: TypeAlias = str | os.PathLike[str]
HEADER_INTS: Final = 256
HEADER_BYTES: Final = 4 * HEADER_INTS
CHECKPOINT_MAGIC: Final = 20240326
DEBUG_STATE_MAGIC: Final = 20240327
TOKENIZER_MAGIC: Final = 20240328
TOKENS_MAGIC: Final = 20240520
TRAINING_STATE_MAGIC: Final = 20261121
_KINDS: Final = {
    CHECKPOINT_MAGIC: "model checkpoint",
    DEBUG_STATE_MAGIC: "debug state",
    TOKENIZER_MAGIC: "tokenizer",
    TOKENS_MAGIC: "tokens",
    TRAINING_STATE_MAGIC: "training state",
}
INT32_MAX: Final = 2**31 - 1
INT32: Final = np.dtype("<i4")


def header_bytes(*values: int) -> bytes:
    """Return a header's 1024 bytes, zeros behind the values."""
    header = np.zeros(HEADER_INTS, INT32)
    header[: len(values)] = values
    return header.tobytes()


@contextmanager
def reading(path: StrPath) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a file to read it; what the operating system refuses becomes a `FileError` with the path."""
    where = Path(path)
    try:
        with where.open("rb") as file:
            yield file, where
    except StarpullmError:
        raise
    except OSError as error:
        raise FileError(f"{where}: can't be read: {reason(error)}", error.errno, str(where)) from error
    except MemoryError as error:
        raise OutOfMemoryError(f"{where}: there is no memory for its content") from error


def reason(error: OSError) -> str:
    """Return the operating system's own words."""
    return error.strerror or str(error)


def refusal(where: Path, position: int, expected: str, found: str) -> FormatError:
    """Return the exception that says which byte is wrong."""
    return FormatError(f"{where}, byte {position}: expected {expected}, found {found}")


def file_size(file: BinaryIO) -> int:
    """Return the number of bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def read_header(file: BinaryIO, where: Path, magic: int) -> list[int]:
    """Read the header's 256 numbers, having checked that the file has one with this magic."""
    data = file.read(HEADER_BYTES)
    if len(data) >= 4:
        found = int.from_bytes(data[:4], "little", signed=True)
        if found != magic:
            name = f" ({_KINDS[found]})" if found in _KINDS else ""
            raise refusal(where, 0, f"magic {magic} ({_KINDS[magic]})", f"{found}{name}")
    if len(data) < HEADER_BYTES:
        raise refusal(where, len(data), f"a {_KINDS[magic]} header of {HEADER_BYTES} bytes", "the end of the file")
    return [int(value) for value in np.frombuffer(data, INT32)]


def check_version(header: list[int], where: Path, versions: tuple[int, ...]) -> int:
    """Return the header's version if it is one of these."""
    if header[1] not in versions:
        raise refusal(where, 4, f"version {' or '.join(map(str, versions))}", f"version {header[1]}")
    return header[1]


def check_size(file: BinaryIO, where: Path, sections: Iterable[tuple[str, int]]) -> None:
    """Check that the header and the sections (name, bytes) are all of the file."""
    size = file_size(file)
    end = HEADER_BYTES
    inside = None
    for name, length in sections:
        end += length
        if inside is None and end > size:
            inside = name
    if inside is not None:
        raise refusal(where, size, f"{end} bytes in all", f"the end of the file in {inside}")
    check_end(file, where, end)


def check_end(file: BinaryIO, where: Path, end: int) -> None:
    """Check that the file ends at this position."""
    extra = file_size(file) - end
    if extra != 0:
        raise refusal(where, end, "the end of the file", f"{extra} more bytes")
