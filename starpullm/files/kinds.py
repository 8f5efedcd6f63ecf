"""What kind of file or folder something is, for the sentence that refuses it where another kind belongs.

Names go from the general to the particular: a kind whose name begins with another's is one of that kind.
"""

from __future__ import annotations

import codecs
import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from starpullm.errors import FileError, FormatError

CHECKPOINT: Final = "a model checkpoint"
TOKENIZER: Final = "a tokenizer"
TOKENS: Final = "a token file"
TRACE: Final = "a starpullm trace"
SAFETENSORS: Final = "a safetensors file"
TEXT: Final = "text"
JSON: Final = "text in JSON"
HUGGING_FACE: Final = "a folder with a model in Hugging Face's layout"
STATES: Final = "a folder of training states"
MAGICS: Final = {
    CHECKPOINT: 20240326,
    "a debug state": 20240327,
    TOKENIZER: 20240328,
    TOKENS: 20240520,
    "a file of a training state": 20261121,
}
LFS_POINTER: Final = b"version https://git-lfs"
_BEGINNINGS: Final = {
    **{magic.to_bytes(4, "little"): kind for kind, magic in MAGICS.items()},
    b"STPPROBE": "a file of the probe's log",
    LFS_POINTER: "a Git LFS pointer, which `git lfs pull` replaces by the file",
    **dict.fromkeys((b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), "a pickle, as older PyTorch files are"),
    b"PK\3\4": "a zip archive",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"GGUF": "a GGUF model",
    b"\x93NUMPY": "a NumPy array",
    b"PAR1": "a Parquet file",
    **dict.fromkeys((b"<!DOCTYPE", b"<!doctype", b"<html", b"<?xml"), "a page of a web server"),
}
_MEMBERS: Final = {b"about.json": TRACE, b"data.pkl": "a PyTorch file, a zip archive", b".npy": "a NumPy archive"}
_CONVERTED: Final = "of which `starpullm convert` makes a checkpoint"
OTHER_KIND: Final = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)
"""What the system says of a folder in a file's place, and of the reverse; of a folder without a file that it needs."""
_HEAD_BYTES: Final = 1024


def kind_of(path: Path) -> str | None:
    """Return the kind of a file or folder; None if it isn't known, or can't be read."""
    with suppress(OSError):
        if path.is_dir():
            names = {item.name for item in path.iterdir()}
            if "config.json" in names:
                return f"{HUGGING_FACE}, {_CONVERTED}"
            return STATES if any(name.startswith("step-") or name.endswith(".state") for name in names) else "a folder"
        if path.is_file():
            with path.open("rb") as file:
                return _kind_of_bytes(file.read(_HEAD_BYTES))
    return None


def _kind_of_bytes(head: bytes) -> str | None:
    if not head:
        return "an empty file"
    start = head.lstrip()
    kind = next((kind for beginning, kind in _BEGINNINGS.items() if start.startswith(beginning)), None)
    if kind == "a zip archive":
        return next((inner for name, inner in _MEMBERS.items() if name in head), kind)
    if head[4:9] == b"\0\0\0\0{":  # the header's length in 8 bytes, and the header
        return f"{SAFETENSORS}, {_CONVERTED}"
    if kind is None and _is_text(head):
        kind = JSON if start.startswith((b"{", b"[")) else TEXT
    return kind


def _is_text(head: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut off
    except UnicodeDecodeError:
        return False
    return text != "" and all(character.isprintable() or character.isspace() for character in text)


@contextmanager
def expecting(kind: str | None, path: Path) -> Iterator[None]:
    """Name what a file or folder is, where it is refused because it is of another kind than this one."""
    try:
        yield
    except (FormatError, FileError) as error:
        found = kind_of(path)
        if kind is None or found is None or found.startswith(kind) or kind.startswith(found):
            raise
        sentence = f"{path}: expected {kind}, found {found}"
        if isinstance(error, FormatError):
            raise FormatError(sentence) from error
        if error.errno not in OTHER_KIND:
            raise
        raise FileError(sentence, error.errno, str(path)) from error
