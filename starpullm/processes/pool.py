"""A pool of children, one for each runtime configuration, which keep their runtimes between the calls.

A child that crashes or hangs is reported, and the next call of its configuration gets a new child.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
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
        self._children: dict[RuntimeConfiguration | int, Child] = {}
        self._sticky = sticky
        self._environment = {"STARPU_HOME": self._directory.name} if "STARPU_HOME" not in os.environ else {}
        self._environment.update(environment or {})
        self.costs: Counter[str] = Counter()
        """The ``processes`` that were started, and the calls that they have ``served``."""
        self.failures: list[str] = []
        """How children have failed at their end, when all calls had been answered."""

    def call(
        self,
        where: RuntimeConfiguration | int,
        function: Callable[..., object],
        *,
        time_limit: float = DEFAULT_TIME_LIMIT,
        counts_allocations: bool = False,
        environment: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> Reply:
        """Call a module-level function in the child of a configuration, with arguments that are JSON values.

        The child imports the function's module: by name if it belongs to this package, otherwise from its file. After
        so many seconds the child is ended. To count allocations, or with an environment in addition to that of the
        others, the call gets a child of its own; and one without a runtime if ``where`` is a number of ranks.

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
        added = {**(allocations.preloading() if counts_allocations else {}), **(environment or {})}
        with self._hold():
            return self._ask(where, request, time_limit, added)

    def close(self) -> None:
        """End all children; may be called twice."""
        while self._children:
            _, child = self._children.popitem()
            try:
                with self._hold():
                    self._note(child.end())
            except StateError as error:  # its end would need the machine
                child.kill()
                self.failures.append(str(error))
        self._directory.cleanup()

    def pids(self) -> dict[RuntimeConfiguration | int, int]:
        """Return the process number of each child, of its rank 0."""
        return {where: child.pids[0] for where, child in self._children.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        where: RuntimeConfiguration | int,
        request: Mapping[str, Any],
        time_limit: float,
        added: Mapping[str, str],
    ) -> Reply:
        """Let a child answer, after starting it unless it is running; then keep it, or end it."""
        is_kept = self._sticky and not added and not isinstance(where, int)
        child = self._children.pop(where, None)
        if child is not None and not is_kept:
            self._note(child.end())
            child = None
        is_running = child is not None
        child = child or self._new_child(where, request["function"], added)
        try:
            started = Answered(None) if is_running else child.start()
            if not isinstance(started, Answered):
                child.end()
                return started
            self.costs.update(processes=not is_running, served=1)
            reply = child.ask(request, time_limit)
        except BaseException:  # Ctrl-C, or the time limit of another plugin: the next call must not get this reply
            child.kill()
            raise
        if is_kept and not isinstance(reply, Lost):
            self._children[where] = child
        else:
            reply = child.end() or reply
        is_value = isinstance(reply, Answered) and reply.value is not None
        return Answered(self.services.read(reply.result())) if is_value else reply

    def _new_child(self, where: RuntimeConfiguration | int, name: str, added: Mapping[str, str]) -> Child:
        arguments: dict[str, object] = {"directory": self._directory.name}
        if isinstance(where, int):
            service, ranks = self.services.alone, where
        else:
            service, ranks, name = self.services.with_runtime, where.ranks, str(where)
            arguments["configuration"] = where
        environment = {**self._environment, **added}
        return Child(name, service, arguments, ranks=ranks, environment=environment, request_name="the check")

    def _note(self, lost: Lost | None) -> None:
        if lost is not None:
            self.failures.append(lost.text)
