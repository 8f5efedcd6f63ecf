"""The process that a check runs in: its place, environment, cores and output."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
