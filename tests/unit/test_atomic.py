"""Tests of writing files that appear only when they are complete."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starpullm.errors import FileError
from starpullm.files.atomic import atomic_folder, atomic_write
from starpullm.files.header import HEADER_BYTES
from starpullm.files.tokens import read_tokens, write_tokens

from .file_kinds import KINDS, Kind


def only(directory: Path) -> list[str]:
    """Names of everything in the directory."""
    return sorted(entry.name for entry in directory.iterdir())


def test_a_new_file_appears_whole(tmp_path: Path) -> None:
    """The name isn't there before everything is written."""
    path = tmp_path / "file.bin"
    with atomic_write(path) as file:
        file.write(b"new")
        assert not path.exists()
        assert len(only(tmp_path)) <= 1
    assert path.read_bytes() == b"new"
    assert only(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_failure_in_the_middle(tmp_path: Path, old: bool, error: type[BaseException]) -> None:
    """The old file survives and the temporary is gone, and the error comes through."""
    path = tmp_path / "file.bin"
    if old:
        path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"new" * 100_000)
            raise error

    with pytest.raises(error):
        write()
    assert only(tmp_path) == (["file.bin"] if old else [])
    assert not old or path.read_bytes() == b"old"


KILLED = """
import os, signal, sys
from starpullm.files.atomic import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"new" * 100_000)
    file.flush()
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path, number: str) -> None:
    """The old file survives, and nothing has to be removed by hand."""
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"{tmp_path}: its file system has no files without a name: {error.strerror}")
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-c", KILLED, path, number], timeout=60, check=False)
    assert ended.returncode == -signal.Signals[number]
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["file.bin"]


@pytest.mark.parametrize("unnamed", [True, False])
def test_both_kinds_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool) -> None:
    """Without /proc, as without files that have no name, the file has a temporary one while it is written."""
    path, access = tmp_path / "file.bin", os.access
    monkeypatch.setattr("os.access", lambda name, mode: access(name, mode) and (unnamed or name != "/proc/self/fd"))
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert only(tmp_path) == ["file.bin"]


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Let the operating system refuse to make a file larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[4]], ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", [0, 100, HEADER_BYTES, HEADER_BYTES + 7])
def test_disk_that_is_full(tmp_path: Path, kind: Kind, size: int) -> None:
    """When the operating system refuses bytes, the old file is still there and the error has the number."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with size_limit(size), pytest.raises(FileError, match=r"file\.bin: can't be written: ") as caught:
        kind.write(path)
    assert caught.value.errno == errno.EFBIG
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["file.bin"]


def refuse(*_: object) -> None:
    """Stand in for a system call that fails."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("call", ["os.fsync", "pathlib.Path.replace"])
def test_last_steps_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Failing to synchronise or rename leaves the old file and no temporary."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(call, refuse)
    with pytest.raises(FileError, match="Input/output error"):
        write_tokens(path, [1, 2, 3])
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert only(tmp_path) == ["file.bin"]


def test_file_and_directory_are_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the file, under its temporary name, then, once renamed, its directory."""
    path = tmp_path / "file.bin"
    seen: list[tuple[bool, bool]] = []

    def record(descriptor: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))

    monkeypatch.setattr("os.fsync", record)
    write_tokens(path, [1])
    assert seen == [(False, False), (True, True)]


def test_a_folder_is_synchronised_after_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is renamed, and then the directory of both names is synchronised."""
    path = tmp_path / "folder"
    seen: list[tuple[str, bool]] = []

    def record(descriptor: int) -> None:
        seen.append((Path(f"/proc/self/fd/{descriptor}").resolve().name, path.exists()))

    monkeypatch.setattr("os.fsync", record)
    with atomic_folder(path) as folder:
        (folder / "file").touch()
    assert seen == [("file", False), (folder.name, False), (tmp_path.name, True)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EACCES])
def test_directories_that_cannot_be_synchronised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Some file systems can't; the file is written all the same."""
    synchronise = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        synchronise(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    path = tmp_path / "file.bin"
    write_tokens(path, [1])
    assert read_tokens(path).tolist() == [1]


def test_permissions(tmp_path: Path) -> None:
    """A new file has the usual permissions, a replaced one keeps its own."""
    path = tmp_path / "file.bin"
    mask = os.umask(0o027)
    try:
        write_tokens(path, [1])
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o600)
    write_tokens(path, [2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_symbolic_link(tmp_path: Path) -> None:
    """The file behind a link is replaced, not the link."""
    target = tmp_path / "real" / "file.bin"
    target.parent.mkdir()
    write_tokens(target, [1])
    link = tmp_path / "link.bin"
    link.symlink_to(target)
    write_tokens(link, [2])
    assert link.is_symlink()
    assert read_tokens(target).tolist() == [2]
    assert only(target.parent) == ["file.bin"]


def test_not_a_regular_file(tmp_path: Path) -> None:
    """Directories and devices aren't replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="expected a regular file"):
        write_tokens(pipe, [1])
    with pytest.raises(FileError, match="Is a directory") as caught:
        write_tokens(tmp_path, [1])
    assert caught.value.errno == errno.EISDIR
    assert only(tmp_path) == ["pipe"]
