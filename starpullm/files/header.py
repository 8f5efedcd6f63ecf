"""What all five formats share: the header of 256 int32, opening a file for reading, and errors that name a byte.

All files are little-endian. A header starts with magic number and version.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import numpy as np

from starpullm.errors import FileError, FormatError, OutOfMemoryError, StarpullmError
from starpullm.files.kinds import MAGICS, OTHER_KIND, expecting, kind_of

_SHA256_DIGITS: Final = 16
"""Of a hash that people compare."""

StrPath: TypeAlias = str | os.PathLike[str]
HEADER_INTS: Final = 256
HEADER_BYTES: Final = 4 * HEADER_INTS
_OTHER_KINDS: Final = {"p": "a FIFO", "s": "a socket", "c": "a character device", "b": "a block device"}
"""By the first letter of what `ls -l` shows."""
INT32_MAX: Final = 2**31 - 1
INT32: Final = np.dtype("<i4")


def header_bytes(kind: str, *values: int) -> bytes:
    """Return the 1024 bytes of a header: the kind's magic number, the values, then zeros."""
    header = np.zeros(HEADER_INTS, INT32)
    header[: len(values) + 1] = MAGICS[kind], *values
    return header.tobytes()


@contextmanager
def reading(path: StrPath, kind: str | None = None) -> Iterator[tuple[BufferedReader, Path]]:
    """Open a regular file for reading, and convert errors of the operating system to `FileError`.

    `FormatError` is raised for what isn't a regular file, for example a FIFO, whose reader would wait for a writer. A
    refusal of a file that isn't of the expected ``kind`` names what it is (see `kinds.expecting`).
    """
    where = Path(path)
    with expecting(kind, where), file_errors(where), open(where, "rb", opener=_open_regular) as file:
        yield file, where


def sha256_of(*paths: StrPath, last: int = 0) -> str:
    """Return the SHA-256 of files in hex, shortened; with ``last``, of so many bytes at the end of each."""
    digest = hashlib.sha256()
    for path in paths:
        with reading(path) as (file, _):
            if last:
                file.seek(-last, os.SEEK_END)
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()[:_SHA256_DIGITS]


@contextmanager
def file_errors(where: StrPath, what: str = "read") -> Iterator[None]:
    """Convert errors of the operating system to `FileError`, and a lack of memory to `OutOfMemoryError`.

    ``what`` is what couldn't be done with the file.
    """
    if "\0" in str(where):
        sentence = f"{str(where)!r}: can't be {what}: no file's name has a null character"
        raise FileError(sentence, errno.ENOENT, str(where))
    try:
        yield
    except StarpullmError:
        raise
    except OSError as error:
        found = kind_of(Path(where)) if error.errno in OTHER_KIND else None
        more = "" if found in (None, "a folder") else f", it is {found}"
        raise FileError(
            f"{where}: can't be {what}: {error.strerror or error}{more}", error.errno, str(where)
        ) from error
    except MemoryError as error:
        raise OutOfMemoryError(f"{where}: there is no memory for its content") from error


def _open_regular(path: str, flags: int) -> int:
    # The kind is looked at first: opening some devices has effects.
    mode = Path(path).stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FormatError(f"{path}: is {_OTHER_KINDS[stat.filemode(mode)[0]]}, expected a regular file")
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def refusal(where: Path | str, position: int, expected: str, found: str) -> FormatError:
    """Return the exception for a wrong byte."""
    return FormatError(f"{where}, byte {position}: expected {expected}, found {found}")


def file_size(file: BinaryIO) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_header(file: BinaryIO, where: Path, kind: str) -> list[int]:
    """Read the 256 numbers of the header, and check its size and magic number."""
    data = file.read(HEADER_BYTES)
    if len(data) >= 4:
        found = int.from_bytes(data[:4], "little", signed=True)
        if found != MAGICS[kind]:
            raise refusal(where, 0, f"magic {MAGICS[kind]} ({kind})", str(found))
    if len(data) < HEADER_BYTES:
        raise refusal(where, len(data), f"the header of {kind}, {HEADER_BYTES} bytes", "the end of the file")
    header: list[int] = np.frombuffer(data, INT32).tolist()
    return header


def check_version(header: list[int], where: Path, versions: tuple[int, ...]) -> int:
    """Check that the header's version is one of these, and return it."""
    if header[1] not in versions:
        raise refusal(where, 4, f"version {' or '.join(map(str, versions))}", f"version {header[1]}")
    return header[1]


def check_size(file: BinaryIO, where: Path, sections: Iterable[tuple[str, int]]) -> None:
    """Check that the file consists of the header and of sections with these names and sizes in bytes."""
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
