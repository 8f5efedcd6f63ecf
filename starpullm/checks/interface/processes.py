"""The process that a check runs in: its place, environment, limits, cores and output, and forks of it."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from starpullm.errors import RuntimeFailureError

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


NO_FORMAT = "100%d%s "
"""How the names of folders begin: a path that is taken for a format would change."""


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


def in_fork(function: Callable[[], Any], **variables: str | None) -> Any:
    """Return a function's result, a JSON value, from a fork of this process in which these variables are set.

    Those that are None are removed.

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
        name = getattr(function, "func", function).__name__
        raise RuntimeFailureError(
            f"{name}: a process with {variables} ended with {os.waitstatus_to_exitcode(status)}, expected a result"
        )
    return json.loads(text)


def loaded_library(*names: str) -> ctypes.CDLL:
    """Return a library that the library under test, which must be open, has loaded; its name begins with one of these.

    Raises
    ------
    RuntimeFailureError
        If it has loaded none or several.
    """
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text("utf-8").splitlines() if "/" in line}
    found = [path for path in mapped if Path(path).name.startswith(names)]
    if len(found) != 1:
        raise RuntimeFailureError(f"{' or '.join(names)}: found {len(found)} of them in this process, expected one")
    return ctypes.CDLL(found[0])


@contextmanager
def bound_to(units: set[int]) -> Iterator[None]:
    """Let this process, with all of its threads, use these processing units only, as mpirun and taskset do."""
    before = {task: os.sched_getaffinity(task) for task in _tasks()}
    try:
        _bind(dict.fromkeys(before, units))
        yield
    finally:
        _bind(before)


@contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Provide what this process has written to its standard output and error, by C or Python, while inside."""
    with tempfile.TemporaryFile() as file:
        saved = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield lambda: os.pread(file.fileno(), 1 << 16, 0).decode("utf-8", "replace")
        finally:
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


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


def _tasks() -> list[int]:
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def _bind(units: Mapping[int, set[int]]) -> None:
    for task, own in units.items():
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(task, own)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
