"""Checkpoints that are refused: where there is no file, files of another kind or size, numbers that no model has."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starpullm.binding import prototypes
from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.files.model import num_parameters
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .refusals import refused
from .sizes import MODEL, B, T

pytestmark = [pytest.mark.child("one worker", preloads="allocations"), pytest.mark.usefixtures("nothing_left")]

HEADER = 1024
_BYTES = HEADER + 4 * num_parameters(MODEL)
SIZES = ("max_seq_len", "vocab_size", "num_layers", "num_heads", "channels", "padded_vocab_size")
NUMBERS = ("magic number", "version", *SIZES)
"""The first numbers of a checkpoint, each of 4 bytes."""

_LARGEST = 2**31 - 1
_TOO_LONG = 8192 - 256 - 1
"""Characters of a sentence, where room is kept for the system's text."""

LENGTHS: list[tuple[int, str]] = [
    (0, "expected a model checkpoint, found an empty file"),
    *(
        (size, f"the file is {size} bytes, expected at least {HEADER} (the header of a model checkpoint): truncated")
        for size in (4, HEADER - 1)
    ),
    *(
        (size, f"the file is {size} bytes, expected {_BYTES} (max_seq_len {MODEL.max_seq_len}, num_layers")
        for size in (HEADER, _BYTES - 4, _BYTES - 1, _BYTES + 1, _BYTES + HEADER)
    ),
]

HEADERS: list[tuple[dict[str, int], str]] = [
    *(({"magic number": magic}, f"byte 0: magic number is {magic}, expected 20240326") for magic in (0, -1)),
    *(
        ({"magic number": magic}, f"expected a model checkpoint, found {kind}")
        for magic, kind in (
            (20261121, "a file of a training state"),
            (20240327, "a debug state"),
            (20240328, "a tokenizer"),
            (20240520, "a token file"),
        )
    ),
    *(({"version": version}, f"byte 4: version is {version}, expected 3") for version in (-1, 0, 2, 4)),
    ({"version": 5}, "byte 4: version is 5 (bfloat16), expected 3 (float32)"),
    *(({name: value}, f"bytes 8 to 31: {name} is {value},") for name in SIZES for value in (0, -(2**31))),
    ({"num_heads": 3}, "bytes 8 to 31: channels is 16, expected a multiple of num_heads (3)"),
    ({"padded_vocab_size": 60}, "bytes 8 to 31: padded_vocab_size is 60, expected at least vocab_size (61)"),
    ({"vocab_size": 65}, "bytes 8 to 31: padded_vocab_size is 64, expected at least vocab_size (65)"),
    # Of a model with more layers, or positions, bytes are missing.
    ({"num_layers": 3}, f"the file is {_BYTES} bytes, expected {_BYTES + 4 * (12 * 16**2 + 13 * 16)} ("),
    ({"max_seq_len": 17}, f"the file is {_BYTES} bytes, expected {_BYTES + 64} ("),
]

TOO_LARGE = {
    "the largest numbers": {**dict.fromkeys(SIZES, _LARGEST), "num_heads": 1},
    "bytes that fit into unsigned 64 bits": {"channels": 2**29, "num_layers": 1},
    # The size of this model is 1024 bytes modulo 2^64.
    "bytes that wrap to the file's size": {
        **{"max_seq_len": 2**31 - 14, "num_layers": 1, "num_heads": 1},
        **{"channels": 2**30, "padded_vocab_size": _LARGEST},
    },
}

Open = Callable[[Path | str], None]
Refuse = Callable[[Callable[[bytes], bytes], str], None]

SPECIAL_FILES = {"a FIFO": "pipe", "a socket": "socket", "a character device": "/dev/zero"}


@pytest.fixture
def open_path(runtime: Runtime) -> Open:
    """Return a function that opens a checkpoint."""
    return lambda path: Trainer(runtime, path, batch_size=B, seq_len=T).close()


@pytest.fixture
def refuse(tmp_path: Path, tiny_checkpoint: Path, open_path: Open) -> Refuse:
    """Return a function that opens another file made of tiny's, and the start of what is said of it."""

    def refuse_file(change: Callable[[bytes], bytes], start: str) -> None:
        path = tmp_path / "100%d%s .bin"  # a path that was taken for a format would change
        path.write_bytes(change(tiny_checkpoint.read_bytes()))
        with refused(FormatError, f"{path}: {start}"):
            open_path(path)

    return refuse_file


def with_numbers(content: bytes, numbers: dict[str, int]) -> bytes:
    """Return a checkpoint with other numbers at its beginning."""
    changed = bytearray(content)
    for name, value in numbers.items():
        struct.pack_into("<i", changed, 4 * NUMBERS.index(name), value)
    return bytes(changed)


@pytest.mark.parametrize(("size", "start"), LENGTHS, ids=[str(size) for size, _ in LENGTHS])
def test_file_of_another_size(refuse: Refuse, size: int, start: str) -> None:
    refuse(lambda good: good[:size].ljust(size, b"\0"), start)


@pytest.mark.parametrize(("numbers", "start"), HEADERS, ids=[str(numbers)[1:-1] for numbers, _ in HEADERS])
def test_header(refuse: Refuse, numbers: dict[str, int], start: str) -> None:
    refuse(lambda good: with_numbers(good, numbers), start)


@pytest.mark.parametrize("numbers", TOO_LARGE.values(), ids=TOO_LARGE)
def test_too_large_model(refuse: Refuse, numbers: dict[str, int]) -> None:
    """Wrapped sums would not notice it."""
    sizes = {name: numbers.get(name, getattr(MODEL, name)) for name in SIZES}
    shown = ("max_seq_len", "num_layers", "channels", "padded_vocab_size")
    start = f"bytes 8 to 31: a checkpoint with {', '.join(f'{name} {sizes[name]}' for name in shown)} is too large"
    refuse(lambda good: with_numbers(good[:HEADER], sizes), start)


def test_good_file_by_another_path(tmp_path: Path, tiny_checkpoint: Path, open_path: Open) -> None:
    path = tmp_path / "100%d%s .bin"
    path.write_bytes(tiny_checkpoint.read_bytes())
    open_path(path)


def test_no_file(tmp_path: Path, open_path: Open) -> None:
    missing = tmp_path / "missing.bin"
    with refused(FileError, f"{missing}: open: No such file or directory", errno=errno.ENOENT):
        open_path(missing)


@pytest.mark.parametrize(("kind", "name"), SPECIAL_FILES.items(), ids=SPECIAL_FILES)
def test_special_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_path: Open, kind: str, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's address has room for 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        path = tmp_path / name
        with refused(FormatError, f"{path}: is {kind}, expected a regular file"):
            open_path(path)


def test_folder(tmp_path: Path, open_path: Open) -> None:
    with refused(FormatError, f"{tmp_path}: expected a model checkpoint, found a folder"):
        open_path(tmp_path)


def test_path_without_end(open_path: Open) -> None:
    """Of a sentence that is too long the beginning is kept, and the system's text at its end."""
    endless = "/" + _TOO_LONG * "x"
    sentence = f"{endless[: _TOO_LONG - len('...')]}...: File name too long"
    with refused(FileError, sentence, errno=errno.ENAMETOOLONG):
        open_path(endless)


def test_tensor_larger_than_starpu_s_vectors(tmp_path: Path, create_in_c: Callable[..., None]) -> None:
    start = f"params/wte: found {2**32} elements, expected at most {2**32 - 1} on 1 ranks"
    with large_checkpoint(tmp_path / "large.bin", 2**28) as large, refused(InvalidArgumentError, start):
        create_in_c(checkpoint=prototypes.c_string("checkpoint", large))


@contextmanager
def large_checkpoint(path: Path, padded_vocab_size: int) -> Iterator[Path]:
    """Provide a checkpoint of one layer with 16 channels and so many rows of wte; it is mostly a hole."""
    sizes = (16, 61, 1, 2, 16, padded_vocab_size)
    elements = (padded_vocab_size + 16) * 16 + (3 + 1 + 4 + 4) * 16 * 16 + (2 + 3 + 1 + 2 + 4 + 1 + 2) * 16
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before[1], before[1]))
    try:
        with path.open("wb") as file:
            file.write(struct.pack("<8i", 20240326, 3, *sizes))
            file.truncate(HEADER + 4 * elements)
        yield path
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        path.unlink(missing_ok=True)
