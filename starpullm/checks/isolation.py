"""Runs checks in child processes, one child for each runtime configuration, which keeps its runtime between checks.

A child that crashes or hangs is reported, and the next check of its configuration gets a new child. Checks share only
the runtime: each makes a trainer of its own from the record's model, whose hash is compared before each use, so every
check begins at the initial state.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from starpullm.binding import allocations
from starpullm.checks.place import Place, Workplace
from starpullm.checks.result import Result, worst_of
from starpullm.errors import InvalidArgumentError, StateError
from starpullm.machine import inspect_machine
from starpullm.processes.children import Answered, Child, Lost, Reply, find_function, location_of
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

DEFAULT_TIME_LIMIT = 60.0
"""Seconds for one check."""

MAX_TIME_LIMIT = 7 * 24 * 3600.0
"""No child lives longer (`processes/children.py`)."""

_Report: TypeAlias = dict[str, Any]
"""A `Result` as JSON values."""


class RuntimeConfiguration(NamedTuple):
    """The settings that a runtime is started with."""

    partition: str
    scheduler: str
    ranks: int = 1

    @property
    def id(self) -> str:
        """The configuration as part of a test's name."""
        return str(self).replace(" ", "-")

    def __str__(self) -> str:
        return f"{self.partition} {self.scheduler}" + (f" {self.ranks} ranks" if self.ranks > 1 else "")


@dataclass
class Costs:
    """The costs of a pool's children: seconds of each start and of each end, and the number of calls."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    served: int = 0

    @property
    def per_process(self) -> float:
        """Seconds for starting and ending a process; the sum of two medians."""
        return sum(statistics.median(seconds) for seconds in (self.starts, self.ends) if seconds)

    @property
    def saved(self) -> float:
        """The additional seconds of a process for each call."""
        return max(self.served - len(self.starts), 0) * self.per_process

    def __add__(self, other: Costs) -> Costs:
        return Costs(self.starts + other.starts, self.ends + other.ends, self.served + other.served)

    def __str__(self) -> str:
        return (
            f"{len(self.starts)} processes served {self.served} checks; starting and ending one takes "
            f"{self.per_process:.2f} s, a fresh one per check would have taken {self.saved:.1f} s more"
        )


class Pool:
    """The children; a context manager. Of all pools of this user on this machine, only one child runs at a time.

    The environment is in addition to this process's. Unless the pool is sticky, every call gets a new child. ``hold``
    gives a context in which this process holds the machine's lock.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        sticky: bool = True,
        hold: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._hold = hold or machine_lock
        self._directory = tempfile.TemporaryDirectory(prefix="starpullm-checks-")
        self._children: dict[RuntimeConfiguration, Child] = {}
        self._sticky = sticky
        self._environment = {"STARPU_HOME": self._directory.name} if "STARPU_HOME" not in os.environ else {}
        self._environment.update(environment or {})
        self.costs = Costs()
        self.failures: list[str] = []
        """How children have failed at their end, when all checks had been answered."""

    def call(
        self,
        configuration: RuntimeConfiguration,
        function: Callable[..., Result | None],
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
        counts_allocations: bool = False,
        **arguments: object,
    ) -> Reply:
        """Call a module-level function in the child of a configuration; the value of its answer is a `Result`, or None.

        Parameters
        ----------
        configuration
            The child's runtime.
        function
            Gets a ``Place`` and the arguments. The child imports its module: by name if it belongs to this package,
            otherwise from its file.
        time_limit
            Seconds, after which the child is ended.
        counts_allocations
            Use a child of its own that counts allocations, for ``memory.check_growth``.
        arguments
            Keyword arguments as JSON values.

        Raises
        ------
        InvalidArgumentError
            If the time limit isn't positive or more than `MAX_TIME_LIMIT`, or the child couldn't find the function.
        LibraryNotFoundError
            If the library that counts allocations isn't installed.
        FileError
            If the machine can't be locked.
        StateError
            If another process uses the machine for too long.
        RuntimeFailureError
            If the child can't be ended.
        """
        if not 0 < time_limit <= MAX_TIME_LIMIT:
            raise InvalidArgumentError(
                f"time_limit: found {time_limit:g}, expected a positive number of seconds, at most {MAX_TIME_LIMIT:g}"
            )
        request = {**location_of(function), "arguments": arguments}
        preloading = allocations.preloading() if counts_allocations else {}
        with self._hold():
            if preloading and configuration in self._children:
                lost = self._end(configuration)
                self.failures += [lost.text] if lost else []
            try:
                reply = self._ask(configuration, request, time_limit, preloading)
            except BaseException:  # Ctrl-C, or the time limit of another plugin: the next check must not get this reply
                if configuration in self._children:
                    self._children.pop(configuration).kill()
                raise
            is_last = bool(preloading) or not self._sticky
            if configuration in self._children and (isinstance(reply, Lost) or is_last):
                return self._end(configuration) or reply
            return reply

    def call_alone(
        self,
        function: Callable[..., Result | None],
        *,
        ranks: int = 1,
        time_limit: float = DEFAULT_TIME_LIMIT,
        counts_allocations: bool = False,
        preloads: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> Reply:
        """Call a function in a child of its own that has no runtime; it gets a ``Workplace``. Else as `call`.

        ``preloads`` are libraries for a child that counts allocations. ``environment`` is added to that of the other
        children.
        """
        preloading = allocations.preloading(*preloads) if counts_allocations else {}
        with self._hold():
            start = time.monotonic()
            with Child(
                function.__name__,
                _answer_alone,
                {"directory": self._directory.name},
                ranks=ranks,
                environment={**self._environment, **preloading, **(environment or {})},
                request_name="the check",
            ) as child:
                started = child.start()
                if not isinstance(started, Answered):
                    return started
                self.costs.starts.append(time.monotonic() - start)
                self.costs.served += 1
                reply = child.ask({**location_of(function), "arguments": arguments}, time_limit)
                lost = None if isinstance(reply, Lost) else child.end()
        if lost is not None:
            return lost
        return Answered(Result.from_json(reply.value)) if isinstance(reply, Answered) else reply

    def close(self) -> None:
        """End all children; may be called twice."""
        for configuration in list(self._children):
            try:
                with self._hold():
                    lost = self._end(configuration)
                    self.failures += [lost.text] if lost else []
            except StateError as error:  # its end would need the machine
                self._children.pop(configuration).kill()
                self.failures.append(str(error))
        self._directory.cleanup()

    def pids(self) -> dict[RuntimeConfiguration, int]:
        """Return the process number of each child, of its rank 0."""
        return {configuration: child.pids[0] for configuration, child in self._children.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        configuration: RuntimeConfiguration,
        request: Mapping[str, object],
        time_limit: float,
        environment: Mapping[str, str],
    ) -> Reply:
        """Let the child answer, after starting it if there is none, with the environment in addition to the pool's."""
        child = self._children.get(configuration)
        if child is None:
            start = time.monotonic()
            child = self._children[configuration] = Child(
                str(configuration),
                _answer_checks,
                {"directory": self._directory.name, "configuration": configuration},
                ranks=configuration.ranks,
                environment={**self._environment, **environment},
                request_name="the check",
            )
            started = child.start()
            if not isinstance(started, Answered):
                self._end(configuration)
                return started
            self.costs.starts.append(time.monotonic() - start)
        self.costs.served += 1
        reply = child.ask(request, time_limit)
        if isinstance(reply, Answered) and reply.value is not None:
            return Answered(Result.from_json(reply.value))
        return reply

    def _end(self, configuration: RuntimeConfiguration) -> Lost | None:
        child = self._children.pop(configuration)
        was_running = not child.has_ended
        start = time.monotonic()
        lost = child.end()
        if was_running:
            self.costs.ends.append(time.monotonic() - start)
        return lost


def machine_in_child(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return ``Machine.as_json()`` from a child, so that this process needn't open the native library."""
    with Child("machine", _describe_machine, {}, environment=environment) as child:
        report: dict[str, Any] = child.start().result()
        return report


# ---- In the child ----


@contextmanager
def _answer_checks(
    comm: Comm | None, directory: str, configuration: Sequence[Any]
) -> Iterator[tuple[None, Callable[[Mapping[str, Any]], _Report | None]]]:
    """Start the runtime; a request names a check and its arguments, the answer is its report, if it has one."""
    report_phase("starting the runtime")
    partition, scheduler, _ = configuration
    own_directory = _own_directory(comm, directory)
    with Runtime(partition, scheduler, comm) as runtime:
        place = Place(runtime, own_directory)

        def answer(request: Mapping[str, Any]) -> _Report | None:
            report_phase(f"running {request['function']}")
            return _answer(find_function(request)(place, **request["arguments"]), comm)

        yield None, answer


@contextmanager
def _answer_alone(
    comm: Comm | None, directory: str
) -> Iterator[tuple[None, Callable[[Mapping[str, Any]], _Report | None]]]:
    """Start nothing; a request names a check and its arguments, the answer is its report."""
    _own_directory(comm, directory)
    workplace = Workplace(Path(directory), comm)

    def answer(request: Mapping[str, Any]) -> _Report | None:
        report_phase(f"running {request['function']}")
        return _answer(find_function(request)(workplace, **request["arguments"]), comm)

    yield None, answer


def _answer(result: Result | None, comm: Comm | None) -> _Report | None:
    """Return the report of a check, of all ranks the worst one; None if there is none."""
    results = [found for found in (comm.allgather(result) if comm else [result]) if found is not None]
    return worst_of(results).as_json() if results else None


def _own_directory(comm: Comm | None, directory: str) -> Path:
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
def _describe_machine(comm: None) -> Iterator[tuple[dict[str, Any], Callable[[object], None]]]:
    yield inspect_machine().as_json(), lambda request: None
