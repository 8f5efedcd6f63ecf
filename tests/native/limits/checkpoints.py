"""Checkpoints that are refused: where there is no file, files of another kind or size, numbers that no model has."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from starpullm.binding import prototypes
from starpullm.checks.place import Place
from starpullm.checks.result import Result
from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.files.model import num_parameters
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from .options import MODEL, TINY, B, T, create_as_is
from .processes import NO_FORMAT, working_folder
from .statements import Statements

HEADER = 1024
KIND = "20240326 (a model checkpoint)"
SIZES = ("max_seq_len", "vocab_size", "num_layers", "num_heads", "channels", "padded_vocab_size")
_OTHER_KINDS = {
    20261121: "a file of a training state",
    20240327: "a debug state",
    20240328: "a tokenizer",
    20240520: "a token file",
}

_BYTES = HEADER + 4 * num_parameters(MODEL)
_FOLLOWS = (
    f"max_seq_len {MODEL.max_seq_len}, num_layers {MODEL.num_layers}, channels {MODEL.channels}, padded_vocab_size "
    f"{MODEL.padded_vocab_size}"
)

_IN_SENTENCE = ("max_seq_len", "num_layers", "channels", "padded_vocab_size")
_ELEMENTS_OF_A_LAYER = 12 * MODEL.channels**2 + 13 * MODEL.channels


def damaged_checkpoints(place: Place, *, seed: int) -> Result:
    """Open checkpoints that are just as they should be, and ones that are not, on one rank."""
    del seed
    statements = Statements("damaged checkpoints")
    good = place.checkpoint(TINY).read_bytes()
    with tempfile.TemporaryDirectory(dir=place.directory, prefix=NO_FORMAT) as directory:
        path = Path(directory, "model.bin")

        def refused(what: str, content: bytes, sentence: str) -> None:
            path.write_bytes(content)
            statements.refused(what, FormatError, f"{path}: {sentence}", opening(place.runtime, path))

        _check_sizes_of_files(refused, good)
        _check_headers(refused, good)
        path.write_bytes(good)
        statements.allowed("a good checkpoint", opening(place.runtime, path))
        _check_no_files(statements, place.runtime, Path(directory))
        with large_checkpoint(Path(directory, "large.bin"), 2**28) as large:
            statements.refused(
                "a tensor of 2^32 elements",
                InvalidArgumentError,
                f"params/wte: found {2**32} elements, expected at most {2**32 - 1} on 1 ranks: StarPU has no larger "
                "vectors",
                partial(create_as_is, place.runtime, checkpoint=prototypes.c_string("checkpoint", large)),
            )
    return statements.result()


def opening(runtime: Runtime, path: Path | str) -> Callable[[], Trainer]:
    """Return a function that opens a checkpoint as `TINY`'s."""
    return partial(Trainer, runtime, path, batch_size=B, seq_len=T)


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


def _check_sizes_of_files(refused: Callable[[str, bytes, str], None], good: bytes) -> None:
    refused("0 bytes", b"", "expected a model checkpoint, found an empty file")
    for size in (4, HEADER - 1):
        refused(
            f"{size} bytes",
            good[:size],
            f"the file is {size} bytes, expected at least {HEADER} (the header of a model checkpoint): truncated, at "
            f"least {HEADER - size} bytes are missing",
        )
    for size in (HEADER, _BYTES - 4, _BYTES - 1):
        refused(
            f"{size} bytes",
            good[:size],
            f"the file is {size} bytes, expected {_BYTES} ({_FOLLOWS}): truncated, {_BYTES - size} bytes are missing",
        )
    for more in (1, HEADER):
        refused(
            f"{more} bytes more",
            good + bytes(more),
            f"the file is {_BYTES + more} bytes, expected {_BYTES} ({_FOLLOWS}): too long by {more} bytes",
        )


def _check_headers(refused: Callable[[str, bytes, str], None], good: bytes) -> None:
    def with_number(position: int, value: int) -> bytes:
        return good[: 4 * position] + struct.pack("<i", value) + good[4 * position + 4 :]

    for magic in (0, -1):
        refused(f"magic number {magic}", with_number(0, magic), f"byte 0: magic number is {magic}, expected {KIND}")
    for magic, kind in _OTHER_KINDS.items():
        refused(kind, with_number(0, magic), f"expected a model checkpoint, found {kind}")
    for version in (-1, 0, 2, 4):
        refused(
            f"version {version}",
            with_number(1, version),
            f"byte 4: version is {version}, expected 3 (a model checkpoint)",
        )
    refused(
        "version 5",
        with_number(1, 5),
        "byte 4: version is 5 (bfloat16), expected 3 (float32): bfloat16 checkpoints can't be read",
    )
    where = "bytes 8 to 31"
    for position, name in enumerate(SIZES, 2):
        for value in (0, -(2**31)):
            refused(f"{name} {value}", with_number(position, value), f"{where}: {name} is {value}, expected at least 1")
    refused("3 heads", with_number(5, 3), f"{where}: channels is 16, expected a multiple of num_heads (3)")
    refused("Vp 60", with_number(7, 60), f"{where}: padded_vocab_size is 60, expected at least vocab_size (61)")
    refused("V 65", with_number(3, 65), f"{where}: padded_vocab_size is 64, expected at least vocab_size (65)")
    for more, size in (("num_layers 3", _BYTES + 4 * _ELEMENTS_OF_A_LAYER), ("max_seq_len 17", _BYTES + 64)):
        position, number = SIZES.index(more.split()[0]) + 2, int(more.split()[1])
        follows = _FOLLOWS.replace(f"{more.split()[0]} {getattr(MODEL, more.split()[0])}", more)
        refused(
            more,
            with_number(position, number),
            f"the file is {_BYTES} bytes, expected {size} ({follows}): truncated, {size - _BYTES} bytes are missing",
        )
    for what, header in _too_large():
        sizes = ", ".join(f"{name} {header[name]}" for name in _IN_SENTENCE)
        refused(
            what,
            (good[:8] + struct.pack("<6i", *header.values())).ljust(HEADER, b"\0"),
            f"{where}: a checkpoint with {sizes} is too large, expected at most {2**63 - 1} bytes",
        )


def _too_large() -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the sizes of models whose files are too large, in ways that wrapped sums would not notice."""
    largest = 2**31 - 1
    yield "the largest numbers", {**dict.fromkeys(SIZES, largest), "num_heads": 1}
    model = {name: getattr(MODEL, name) for name in SIZES}
    yield "bytes that fit into unsigned 64 bits", {**model, "channels": 2**29, "num_layers": 1}
    # The size of this model is 1024 bytes modulo 2^64.
    wrapping = {"max_seq_len": 2**31 - 14, "num_layers": 1, "num_heads": 1, "channels": 2**30}
    yield "bytes that wrap to the file's size", {**model, **wrapping, "padded_vocab_size": largest}


_LONGEST_SENTENCE = 8192 - 256 - 1
"""Characters of a sentence, where room is kept for the system's text."""


def _check_no_files(statements: Statements, runtime: Runtime, directory: Path) -> None:
    missing, pipe = directory / "missing.bin", directory / "pipe"
    os.mkfifo(pipe)
    # A socket's address has room for 107 bytes, so it is bound from within its folder.
    with socket.socket(socket.AF_UNIX) as listener, working_folder(directory):
        listener.bind("socket")
    statements.refused(
        "no file", FileError, f"{missing}: open: No such file or directory", opening(runtime, missing), errno.ENOENT
    )
    for path, kind in (
        (str(pipe), "a FIFO"),
        (str(directory / "socket"), "a socket"),
        ("/dev/zero", "a character device"),
    ):
        statements.refused(kind, FormatError, f"{path}: is {kind}, expected a regular file", opening(runtime, path))
    sentence = f"{directory}: expected a model checkpoint, found a folder"
    statements.refused("a folder", FormatError, sentence, opening(runtime, directory))
    # Of a sentence that is too long the beginning is kept, and the system's text at its end.
    endless = "/" + _LONGEST_SENTENCE * "x"
    sentence = f"{endless[: _LONGEST_SENTENCE - len('...')]}...: File name too long"
    statements.refused("a path without end", FileError, sentence, opening(runtime, endless), errno.ENAMETOOLONG)
    for special in (pipe, directory / "socket"):
        special.unlink()
