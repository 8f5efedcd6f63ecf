"""The process that a check runs in: its place, its environment, its limits, and forks of it."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starpullm.errors import RuntimeFailureError

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


class Workplace(NamedTuple):
    """Where a check runs that starts runtimes itself: a directory for its files, and several ranks' communicator."""

    directory: Path
    comm: Comm | None = None


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set variables of the environment, or remove those that are None, and restore them."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def in_fork(function: Callable[[], Any], **variables: str) -> Any:
    """Return a function's result, a JSON value, from a fork of this process in which these variables are set.

    This process must have a single thread, and must not have opened the library under test.

    Raises
    ------
    RuntimeFailureError
        If the fork ends without a result.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            with environment(**variables), os.fdopen(writer, "w", encoding="utf-8") as stream:
                json.dump(function(), stream)
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) or not text:
        raise RuntimeFailureError(
            f"{function}: a process with {variables} ended with {os.waitstatus_to_exitcode(status)}, expected a result"
        )
    return json.loads(text)


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """Let relative paths be relative to this folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let no file that this process writes become larger than so many bytes; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
