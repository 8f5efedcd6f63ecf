"""A file or folder of another kind is named as what it is, by every reader."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm.errors import FileError, FormatError
from starpullm.files.atomic import atomic_folder, check_can_write
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.hugging_face import open_model
from starpullm.files.json_reader import read_json
from starpullm.files.kinds import kind_of
from starpullm.files.safetensors import stored_tensors
from starpullm.files.tokenizer import read_tokenizer
from starpullm.files.tokens import read_tokens
from starpullm.files.trace_file import read_trace_file

from .file_kinds import KINDS
from .hugging_face_files import float32, safetensors_bytes, write_config

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 548105171\n"
READERS: dict[str, Callable[[Path], object]] = {
    "a model checkpoint": read_checkpoint,
    "a tokenizer": read_tokenizer,
    "a token file": read_tokens,
    "a starpullm trace": read_trace_file,
    "a safetensors file": stored_tensors,
    "text in JSON": read_json,
}


def _zip(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"x")
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


CONTENTS = {
    "a Git LFS pointer": POINTER,
    "a PyTorch file, a zip archive": _zip("model/data.pkl"),
    "a pickle, as older PyTorch files are": pickle.dumps({"wte.weight": 1}),
    "a NumPy archive": _zip("wte.npy"),
    "a NumPy array": _npy(),
    "a zip archive": _zip("readme.txt"),
    "a gzip file": gzip.compress(b"x"),
    "a zstd file": b"\x28\xb5\x2f\xfd\x04",
    "a GGUF model": b"GGUF\3\0\0\0",
    "a safetensors file": safetensors_bytes({"a": float32(np.ones(2))}),
    "a page of a web server": b"\n<!DOCTYPE html><title>404</title>",
    "a file of a training state": (20261121).to_bytes(4, "little") + bytes(1020),
    "a debug state": (20240327).to_bytes(4, "little"),
    "a file of the probe's log": b"STPPROBE" + bytes(8),
    "an empty file": b"",
    "text": "Größe\r\n\f".encode(),
    "text in JSON": b' [1, {"a": 2}]',
}


@pytest.mark.parametrize("found", CONTENTS)
def test_files_of_another_kind(tmp_path: Path, found: str) -> None:
    """By each reader; a file of the reader's own kind is judged by its content."""
    path = tmp_path / "file"
    path.write_bytes(CONTENTS[found])
    for expected, read in READERS.items():
        if expected.startswith(found):
            continue
        with pytest.raises(FormatError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: expected {expected}, found {found}"), expected


@pytest.mark.parametrize("name", ["config.json", "step-000000000004", "rank-00000-of-00001.state", "other"])
def test_folders(tmp_path: Path, name: str) -> None:
    """A folder is named as what it holds."""
    (tmp_path / name).touch()
    found = {"config.json": "a folder with a model in Hugging Face's layout", "other": "a folder"}
    for expected, read in READERS.items():
        with pytest.raises(FileError) as caught:
            read(tmp_path)
        kind = found.get(name, "a folder of training states")
        assert str(caught.value).startswith(f"{tmp_path}: expected {expected}, found {kind}")


def test_what_to_do(tmp_path: Path) -> None:
    """The sentence says what makes the expected file of the one that was found."""
    (tmp_path / "pointer").write_bytes(POINTER)
    (tmp_path / "model.safetensors").write_bytes(CONTENTS["a safetensors file"])
    with pytest.raises(FormatError, match=r"found a Git LFS pointer, which `git lfs pull` replaces by the file$"):
        read_checkpoint(tmp_path / "pointer")
    with pytest.raises(
        FormatError, match=r"found a safetensors file, of which `starpullm convert` makes a checkpoint$"
    ):
        read_checkpoint(tmp_path / "model.safetensors")
    write_config(tmp_path, (6, 11, 2, 2, 4))
    (tmp_path / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(FormatError, match=r"model\.safetensors: expected a safetensors file, found a Git LFS pointer"):
        open_model(tmp_path)


def test_files_and_folders_where_the_other_belongs(tmp_path: Path) -> None:
    """Also where something is to be written, and for a folder of another kind than the one that is needed."""
    archive, states = tmp_path / "model.gz", tmp_path / "states"
    archive.write_bytes(CONTENTS["a gzip file"])
    (states / "step-000000000004").mkdir(parents=True)
    with pytest.raises(
        FileError, match=r"states: can't be written: Is a directory, it is a folder of training states$"
    ):
        check_can_write(states)
    refused = pytest.raises(FileError, match=r"model\.gz: can't be written: Not a directory, it is a gzip file$")
    with refused, atomic_folder(archive):
        pass
    with pytest.raises(
        FileError, match=r"states: expected a folder with a model in .* layout, found a folder of train"
    ):
        open_model(states)


def test_files_of_the_formats_are_known(tmp_path: Path) -> None:
    """What can't be read has no kind; nor has what isn't known: the refusal says at which byte."""
    for kind in KINDS:
        kind.write(tmp_path / "file")
        assert kind_of(tmp_path / "file") in READERS
    (tmp_path / "file").write_bytes(b"\xff\1\2\3")
    assert kind_of(tmp_path / "file") is None
    assert kind_of(tmp_path / "none") is None
    (tmp_path / "cut").write_text(json.dumps("é" * 2000, ensure_ascii=False), "utf-8")
    assert kind_of(tmp_path / "cut") == "text"
