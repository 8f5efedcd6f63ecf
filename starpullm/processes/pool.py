"""A pool of children, one for each runtime configuration, which keep their runtimes between the calls.

A child that crashes or hangs is reported, and the next call of its configuration gets a new child.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from starpullm.binding import allocations
from starpullm.errors import InvalidArgumentError, StateError
from starpullm.processes.children import Answered, Child, Lost, Reply, Service, location_of
from starpullm.processes.lock import machine_lock

DEFAULT_TIME_LIMIT = 60.0
"""Seconds for one call."""

MAX_TIME_LIMIT = 7 * 24 * 3600.0
"""No child lives longer (`processes/children.py`)."""


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


class Services(NamedTuple):
    """What children run: each answers requests with a function's location and arguments; ``read`` makes it of JSON."""

    with_runtime: Callable[..., Service]
    """Gets the pool's directory and a configuration."""
    alone: Callable[..., Service]
    """Gets the directory."""
    read: Callable[[Any], Any]


class Pool:
    """The children; a context manager. Of all pools of this user on this machine, only one child runs at a time.

    The environment is in addition to this process's. Unless the pool is sticky, every call gets a new child. ``hold``
    gives a context in which this process holds the machine's lock.

    A subclass says what the children run.
    """

    services: ClassVar[Services]

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
        """How children have failed at their end, when all calls had been answered."""

    def call(
        self,
        configuration: RuntimeConfiguration,
        function: Callable[..., object],
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
        counts_allocations: bool = False,
        **arguments: object,
    ) -> Reply:
        """Call a module-level function in the child of a configuration, with arguments that are JSON values.

        The child imports the function's module: by name if it belongs to this package, otherwise from its file. After
        so many seconds the child is ended. To count allocations, the call gets a child of its own.

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
            running = self._children.pop(configuration, None)
            if preloading and running is not None:
                self._note(self._end(running))
                running = None
            child = running or Child(
                str(configuration),
                self.services.with_runtime,
                {"directory": self._directory.name, "configuration": configuration},
                ranks=configuration.ranks,
                environment={**self._environment, **preloading},
                request_name="the check",
            )
            key = configuration if self._sticky and not preloading else None
            return self._ask(child, request, time_limit, key, is_running=running is not None)

    def call_alone(
        self,
        function: Callable[..., object],
        *,
        ranks: int = 1,
        time_limit: float = DEFAULT_TIME_LIMIT,
        counts_allocations: bool = False,
        preloads: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> Reply:
        """Call a function in a child of its own that has no runtime. Else as `call`.

        ``preloads`` are libraries for a child that counts allocations. ``environment`` is added to that of the other
        children.
        """
        preloading = allocations.preloading(*preloads) if counts_allocations else {}
        request = {**location_of(function), "arguments": arguments}
        with self._hold():
            child = Child(
                function.__name__,
                self.services.alone,
                {"directory": self._directory.name},
                ranks=ranks,
                environment={**self._environment, **preloading, **(environment or {})},
                request_name="the check",
            )
            return self._ask(child, request, time_limit)

    def close(self) -> None:
        """End all children; may be called twice."""
        while self._children:
            _, child = self._children.popitem()
            try:
                with self._hold():
                    self._note(self._end(child))
            except StateError as error:  # its end would need the machine
                child.kill()
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
        child: Child,
        request: Mapping[str, object],
        time_limit: float,
        key: RuntimeConfiguration | None = None,
        *,
        is_running: bool = False,
    ) -> Reply:
        """Let a child answer, after starting it unless it is running; then keep it by its key, or end it."""
        try:
            if not is_running:
                start = time.monotonic()
                started = child.start()
                if not isinstance(started, Answered):
                    child.end()
                    return started
                self.costs.starts.append(time.monotonic() - start)
            self.costs.served += 1
            reply = child.ask(request, time_limit)
        except BaseException:  # Ctrl-C, or the time limit of another plugin: the next call must not get this reply
            child.kill()
            raise
        if key is None or isinstance(reply, Lost):
            reply = self._end(child) or reply
        else:
            self._children[key] = child
        is_value = isinstance(reply, Answered) and reply.value is not None
        return Answered(self.services.read(reply.result())) if is_value else reply

    def _end(self, child: Child) -> Lost | None:
        was_running = not child.has_ended
        start = time.monotonic()
        lost = child.end()
        if was_running:
            self.costs.ends.append(time.monotonic() - start)
        return lost

    def _note(self, lost: Lost | None) -> None:
        if lost is not None:
            self.failures.append(lost.text)
