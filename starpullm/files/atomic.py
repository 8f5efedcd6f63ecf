"""Writing files and folders that appear under their name only when they are complete and on the disk."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from starpullm.errors import FileError
from starpullm.files.header import StrPath, file_errors


@contextmanager
def atomic_write(path: StrPath) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete and on the disk.

    It is written without a name, or under a temporary one where the file system has no such files, in the same
    directory, synchronised and renamed, and the directory is synchronised. After any failure, also an exception of the
    caller, nothing of it is left and an existing file is unchanged; a process that is killed leaves at most the file of
    a temporary name. Symbolic links are followed, and the permissions of an existing file are kept.
    """
    with _replaced(path) as (target, candidate):
        mode = _mode_of(target)
        unnamed = _unnamed_file(target.parent)
        with candidate.open("xb") if unnamed is None else os.fdopen(unnamed, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if unnamed is not None:
                # With a descriptor, which an absolute path ignores, Python calls linkat(), which can follow the link.
                os.link(f"/proc/self/fd/{unnamed}", candidate, src_dir_fd=unnamed, follow_symlinks=True)


@contextmanager
def atomic_folder(path: StrPath) -> Iterator[Path]:
    """Give an empty folder, whose files appear under the path when all of them are complete and on the disk.

    After any failure, also an exception of the caller, nothing is left of it. An empty folder at the path is replaced.
    """
    with _replaced(path) as (target, candidate):
        if target.exists() and any(target.iterdir()):
            raise FileError(f"{path}: can't be written: expected no file in this folder", errno.EEXIST, str(path))
        candidate.mkdir()
        yield candidate
        for file in candidate.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        sync_directory(candidate)


def check_can_write(path: StrPath) -> None:
    """Refuse what can't be written, before it is computed: the rules are those of the native library's writer."""
    with file_errors(path, "written"):
        if Path(path).is_symlink():
            Path(path).stat()
        target = Path(path).resolve()
        if _mode_of(target) is not None and not os.access(target, os.W_OK, effective_ids=os.geteuid() != os.getuid()):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        tempfile.TemporaryFile(dir=target.parent).close()


def require_space(path: StrPath, size: int) -> None:
    """Refuse a file of so many bytes that its file system has no room for, before any of it is written."""
    try:
        free = shutil.disk_usage(Path(path).resolve().parent).free
    except OSError:
        return  # the directory isn't there: writing says so
    if size > free:
        raise FileError(f"{path}: {size} bytes to be written, {free} are free", errno.ENOSPC, str(path))


@contextmanager
def _replaced(path: StrPath) -> Iterator[tuple[Path, Path]]:
    """Give the target of a path and a name beside it; what then has that name replaces the target."""
    with file_errors(path, "written"):
        target = Path(path).resolve()
        candidate = target.with_name(f".starpullm-{secrets.token_hex(8)}.tmp")
        try:
            yield target, candidate
            candidate.replace(target)
        except BaseException:
            shutil.rmtree(candidate, ignore_errors=True)
            with suppress(OSError):
                candidate.unlink()
            raise
        sync_directory(target.parent)


def _unnamed_file(directory: Path) -> int | None:
    """Open a new file without a name for writing; None: the system has none. It gets its name through /proc."""
    if not os.access("/proc/self/fd", os.X_OK):
        return None
    try:
        return os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError:  # a reason that isn't this one ends the opening of a named file too
        return None


def _mode_of(target: Path) -> int | None:
    """Return the permissions of the file that will be replaced, or None if it doesn't exist."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise FileError(f"{target}: can't be written: expected a regular file", errno.EINVAL, str(target))
    return stat.S_IMODE(mode)


def sync_directory(directory: Path) -> None:
    """Write a directory's entries to the disk, if its file system supports that."""
    # Not an error: the directory isn't readable, or its file system can't synchronise directories.
    with suppress(PermissionError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)
