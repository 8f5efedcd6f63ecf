"""What runs a workload in processes of its own, alone or in turn with others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from starpullm.errors import InvalidArgumentError, StarpullmError
from starpullm.processes.children import START_SECONDS, Child, Lost, Reply
from starpullm.processes.endings import ExitedWith
from starpullm.processes.service import Raised, Service
from starpullm.speed import worker
from starpullm.speed.workload import Workload


class Variant:
    """One process, or the ranks of a job, that run a workload; they are stopped while there is no request to answer.

    The ``service``, which runs in its processes, answers the same requests as ``worker.serve``. They open the native
    ``library``, by default the one that this process would open. ``changes`` are fields of the workload whose values
    are not those of the other variants.
    """

    first: Mapping[str, Any]
    """The answer to the request ``"first"``: what is the same in all turns."""

    def __init__(
        self,
        name: str,
        service: Callable[..., Service] = worker.serve,
        *,
        library: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        self.name = name
        self.library = library
        self.environment = {**(environment or {}), **({"STARPULLM_LIB": str(library)} if library else {})}
        self._service = service
        self._changes = changes
        self.seconds: list[dict[str, float]] = []
        """For each turn: the seconds of a step, and of a step's kernels by operation."""

    def start(
        self,
        workload: Workload,
        checkpoint: Path,
        time_limit: float,
        stack: ExitStack,
        start_limit: float = START_SECONDS,
    ) -> None:
        """Start the processes, which the stack ends; limits are in seconds, for each answer and for the start."""
        own = replace(workload, **self._changes)
        self._time_limit = time_limit
        self._child = stack.enter_context(
            Child(
                f"{self.name}, {own}",
                self._service,
                {"workload": own, "checkpoint": checkpoint},
                ranks=own.ranks,
                environment=self.environment,
                request_name="the measurement",
            )
        )
        self._value(self._child.start(start_limit))

    def ask(self, request: str) -> Any:
        """Return the answer to a request; that a workload isn't possible is told by one of ``worker.REFUSALS``."""
        return self._value(self._child.ask(request, self._time_limit))

    def _value(self, reply: Reply) -> Any:
        name = self._child.name
        if isinstance(reply, Raised) and reply.kind in worker.REFUSALS:
            raise worker.REFUSALS[reply.kind](f"{name}: {reply.sentence}")
        if isinstance(reply, Lost) and isinstance(reply.ending, StarpullmError):
            raise reply.ending
        if isinstance(reply, Lost) and isinstance(reply.ending, ExitedWith) and reply.ending.status == worker.REFUSED:
            raise InvalidArgumentError(f"{name}: {reply.ending.sentence}")
        return reply.result()
