"""Runs checks in child processes, of which each configuration of the runtime has one, kept between the calls.

Checks share only the runtime: each makes a trainer of its own from the record's model, whose hash is compared before
each use, so every check begins at the initial state. A child that crashes or hangs is reported, and the next call of
its configuration gets a new child.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from starpullm.binding import allocations
from starpullm.checks.check_context import CheckContext, StandaloneContext
from starpullm.checks.result import Result, worst_of
from starpullm.errors import StateError
from starpullm.machine import inspect_machine, with_cores_for
from starpullm.options import RuntimeConfiguration
from starpullm.processes import Comm
from starpullm.processes.children import Answered, Child, Lost, Reply, find_function, location_of
from starpullm.processes.lock import machine_lock
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime


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
        time_limit: float = 60.0,
        counts_allocations: bool = False,
        environment: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> Reply:
        """Call a module-level function in the child of a configuration, with a context and JSON values as arguments.

        The context is a ``CheckContext``, or without a runtime a ``StandaloneContext``. The function returns a
        ``Result`` or None, over ranks the worst one. The child imports the function's module: by name if it belongs to
        this package, otherwise from its file. After so many seconds the child is ended. To count allocations, or with
        an environment in addition to that of the others, the call gets a child of its own; and one without a runtime if
        ``where`` is a number of ranks.

        `InvalidArgumentError` is raised for a function that the child couldn't find, `StateError` if another process
        uses the machine for too long.
        """
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
        return Answered(Result.from_json(reply.result())) if is_value else reply

    def _new_child(self, where: RuntimeConfiguration | int, name: str, added: Mapping[str, str]) -> Child:
        alone = isinstance(where, int)
        return Child(
            name if alone else str(where),
            _answer_checks,
            {"directory": self._directory.name, "configuration": None if alone else where},
            ranks=where if isinstance(where, int) else where.ranks,
            environment={**self._environment, **({} if alone else with_cores_for(where.partition)), **added},
            request_name="the check",
        )

    def _note(self, lost: Lost | None) -> None:
        if lost is not None:
            self.failures.append(lost.text)


def machine_in_child() -> dict[str, Any]:
    """Return what `inspect_machine` finds in a child, so that this process needn't open the native library."""
    with Child("machine", _describe_machine, {}) as child:
        report: dict[str, Any] = child.start().result()
        return report


# ---- In the child ----


@contextmanager
def _answer_checks(
    comm: Comm | None, directory: str, configuration: list[Any] | None
) -> Iterator[tuple[None, Callable[[Mapping[str, Any]], dict[str, Any] | None]]]:
    """Start a runtime, if there is a configuration of one, and answer a function and its arguments with its result."""
    local_directory = _local_directory(comm, directory)
    with ExitStack() as stack:
        context: CheckContext | StandaloneContext = StandaloneContext(Path(directory), comm)
        if configuration is not None:
            report_phase("starting the runtime")
            partition, scheduler, _ = configuration
            context = CheckContext(stack.enter_context(Runtime(partition, scheduler, comm)), local_directory)

        def answer(request: Mapping[str, Any]) -> dict[str, Any] | None:
            report_phase(f"running {request['function']}")
            if isinstance(context, CheckContext):  # the check before may have needed other arithmetic or functions
                context.runtime.restart()
            result: Result | None = find_function(request)(context, **request["arguments"])
            results = [found for found in (comm.allgather(result) if comm else [result]) if found is not None]
            return worst_of(results).as_json() if results else None

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
def _describe_machine(comm: None) -> Iterator[tuple[dict[str, Any], Callable[[object], None]]]:
    yield inspect_machine(), lambda request: None
