"""Tests of damage that every one of llm.c's formats can have."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from starpullm.errors import FileError, FormatError
from starpullm.files.header import HEADER_BYTES

from .file_kinds import KINDS, Kind, every_kind, patch_int32


def truncations() -> Iterator[tuple[Kind, int]]:
    """Every size just before, at and after a boundary that is shorter than the whole file."""
    for kind in KINDS:
        edges = (1, 4, 8, HEADER_BYTES, *kind.boundaries)
        sizes = {edge + delta for edge in edges for delta in (-1, 0, 1)}
        for size in sorted(sizes):
            if 0 < size < kind.boundaries[-1]:  # test_kinds.py has the empty file
                yield kind, size


@pytest.mark.parametrize(
    ("kind", "size"), [pytest.param(kind, size, id=f"{kind.name}-{size}") for kind, size in truncations()]
)
def test_truncated(tmp_path: Path, kind: Kind, size: int) -> None:
    """A file that ends too early is refused with the place where it ends."""
    path = tmp_path / "file.bin"
    kind.write(path)
    assert path.stat().st_size == kind.boundaries[-1]
    os.truncate(path, size)
    with pytest.raises(FormatError) as caught:
        kind.read(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}, byte {size}: expected ")
    assert "found the end of the file" in sentence
    assert "\n" not in sentence


@every_kind
@pytest.mark.parametrize("extra", [1, 2, 4, 4096])
def test_oversized(tmp_path: Path, kind: Kind, extra: int) -> None:
    """A file that goes on after its end is refused with that end."""
    path = tmp_path / "file.bin"
    kind.write(path)
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(extra))
    with pytest.raises(FormatError) as caught:
        kind.read(path)
    assert str(caught.value) == f"{path}, byte {end}: expected the end of the file, found {extra} more bytes"


@every_kind
def test_wrong_magic(tmp_path: Path, kind: Kind) -> None:
    """Another magic is refused, whatever follows."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"\xff\1\2\3" + bytes(100))
    with pytest.raises(FormatError, match=rf"byte 0: expected magic {kind.magic} \(.*\), found 50463231$"):
        kind.read(path)


@every_kind
def test_another_format(tmp_path: Path, kind: Kind) -> None:
    """A file of another of the four formats is named as what it is."""
    for other in KINDS:
        if other.magic != kind.magic:
            path = tmp_path / f"{other.magic}.bin"
            other.write(path)
            with pytest.raises(
                FormatError, match=rf": expected a .*, found a .*{other.name.split(',')[0].rstrip('s')}"
            ):
                kind.read(path)


@every_kind
@pytest.mark.parametrize("version", [0, 99, -1])
def test_wrong_version(tmp_path: Path, kind: Kind, version: int) -> None:
    """Another version is refused with both versions."""
    path = tmp_path / "file.bin"
    kind.write(path)
    patch_int32(path, 1, version)
    with pytest.raises(FormatError, match=rf"byte 4: expected version .*{kind.version}.*, found version {version}$"):
        kind.read(path)


@every_kind
def test_missing_file(tmp_path: Path, kind: Kind) -> None:
    """A file that isn't there is the operating system's error, with its number."""
    path = tmp_path / "none.bin"
    with pytest.raises(FileError, match=r"none\.bin: can't be read: No such file or directory$") as caught:
        kind.read(path)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(path)


@every_kind
@pytest.mark.timeout(20)
def test_fifo(tmp_path: Path, kind: Kind) -> None:
    """A FIFO is refused; opening it would wait for a writer. A device would give what it likes."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for other, name in ((path, "a FIFO"), (Path("/dev/zero"), "a character device")):
        with pytest.raises(FormatError) as caught:
            kind.read(other)
        assert str(caught.value) == f"{other}: is {name}, expected a regular file"


@every_kind
def test_directory(tmp_path: Path, kind: Kind) -> None:
    """A directory isn't a file."""
    with pytest.raises(FileError, match=r": expected a .*, found a folder$") as caught:
        kind.read(tmp_path)
    assert caught.value.errno == errno.EISDIR
