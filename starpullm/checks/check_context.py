"""Where a check runs: in a process that has a runtime, or alone; the environment, cores and output of the process.

`serve_checks` is what the children of checks run. Checks share only the runtime: each makes a trainer of its own from
the record's model, whose hash is compared before each use, so every check begins at the initial state.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from starpullm.checks.result import worst_of
from starpullm.checks.training import checkpoint_in
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import GoldenRecord
from starpullm.machine import with_cores_for
from starpullm.options import RuntimeConfiguration
from starpullm.processes import Comm
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime


class CheckContext(NamedTuple):
    """Where a check runs: a runtime, and a directory for generated models; ``progress`` is called after each step."""

    runtime: Runtime
    directory: Path
    progress: Callable[[], None] | None = None

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


@contextmanager
def serve_checks(
    comm: Comm | None, directory: str, configuration: RuntimeConfiguration | None
) -> Iterator[tuple[None, Callable[[partial[Any]], Any]]]:
    """Start a runtime, if there is a configuration of one, and answer a function of the context with its value.

    Of several ranks' results the worst one is the answer.
    """
    local_directory = _local_directory(comm, directory)
    with ExitStack() as stack:
        context: CheckContext | StandaloneContext = StandaloneContext(Path(directory), comm)
        if configuration is not None:
            report_phase("starting the runtime")
            partition, scheduler, _ = configuration
            if comm is None:
                os.environ.update(with_cores_for(partition))
            context = CheckContext(stack.enter_context(Runtime(partition, scheduler, comm)), local_directory)

        def answer(request: partial[Any]) -> Any:
            report_phase(f"running {request.func.__name__}")
            if isinstance(context, CheckContext):  # the check before may have needed other arithmetic or functions
                context.runtime.restart()
            found = request(context)
            if comm is None or isinstance(found, Mapping):  # arrays are those of all ranks
                return found
            results = [result for result in comm.allgather(found) if result is not None]
            return worst_of(results) if results else None

        yield None, answer


def _local_directory(comm: Comm | None, directory: str) -> Path:
    """Return a rank's directory, which is also StarPU's unless the user has named another one.

    Ranks that calibrate the machine at the same time would read each other's files before they are complete.
    """
    if comm is None:
        return Path(directory)
    own = Path(directory, str(comm.Get_rank()))
    own.mkdir(exist_ok=True)
    if os.environ.get("STARPU_HOME") == directory:
        os.environ["STARPU_HOME"] = str(own)
    return own


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

    def bind(units_of_tasks: Mapping[int, set[int]]) -> None:
        for task, own in units_of_tasks.items():
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
