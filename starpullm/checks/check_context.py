"""Where a check runs: in a process that has a runtime, or alone; the environment, cores and output of the process."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from starpullm.checks.cases import Case
from starpullm.checks.check import all_checks
from starpullm.checks.result import Result
from starpullm.checks.training import checkpoint_in
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import GoldenRecord
from starpullm.options import RuntimeConfiguration
from starpullm.processes import Comm
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime


class CheckContext(NamedTuple):
    """Where a check runs: a runtime, and a directory for generated models."""

    runtime: Runtime
    directory: Path

    def checkpoint(self, record: GoldenRecord) -> Path:
        """Return the record's model; an existing file is used if it still has the record's hash."""
        return checkpoint_in(self.directory, record)

    def __str__(self) -> str:
        return str(RuntimeConfiguration(str(self.runtime.partition), self.runtime.scheduler, self.runtime.ranks))


class StandaloneContext(NamedTuple):
    """Where a check runs that starts runtimes itself: a directory for its files, and several ranks' communicator."""

    directory: Path
    comm: Comm | None = None

    def __str__(self) -> str:
        return f"{self.comm.Get_size()} ranks" if self.comm else ""


def run_check(
    context: CheckContext | StandaloneContext, *, check: str, case: Mapping[str, Any], path: str = ""
) -> Result | None:
    """Run a case of a registered check; arrays are written to a file (.npz), and there is no result then."""
    of = Case(**case)
    report_phase(f"running {check} of {of}")
    found: Any = all_checks()[check].run(context, of)  # type: ignore[arg-type]
    if isinstance(found, Result):
        return replace(found, where=" on ".join(filter(None, (str(of), str(context)))))
    assert isinstance(context, CheckContext)
    if context.runtime.rank == 0:
        np.savez(path, allow_pickle=False, **found)
    return None


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set variables of the environment, or remove those that are None, and restore them."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def is_in_memory(refusal: InvalidArgumentError) -> bool:
    """Return whether a runtime refuses a folder for data because its file system is memory itself."""
    return "a file system in memory" in str(refusal)


@contextmanager
def bound_to(units: set[int]) -> Iterator[None]:
    """Let this process, with all of its threads, use these processing units only, as mpirun and taskset do."""
    before = {int(task.name): os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()}

    def bind(to: Mapping[int, set[int]]) -> None:
        for task, own in to.items():
            with suppress(ProcessLookupError):  # a thread that has ended
                os.sched_setaffinity(task, own)

    try:
        bind(dict.fromkeys(before, units))
        yield
    finally:
        bind(before)


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let no file that this process writes become larger than so many bytes; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
