"""Runs checks in child processes, of which each configuration of the runtime has one.

Checks share only the runtime: each makes a trainer of its own from the record's model, whose hash is compared before
each use, so every check begins at the initial state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from starpullm.checks.place import Place, Workplace
from starpullm.checks.result import Result, worst_of
from starpullm.machine import inspect_machine
from starpullm.processes import pool
from starpullm.processes.children import Child, find_function
from starpullm.processes.pool import DEFAULT_TIME_LIMIT, MAX_TIME_LIMIT, RuntimeConfiguration
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = ["DEFAULT_TIME_LIMIT", "MAX_TIME_LIMIT", "Pool", "RuntimeConfiguration"]

_Report: TypeAlias = dict[str, Any]
"""A `Result` as JSON values."""


def machine_in_child(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return ``Machine.as_json()`` from a child, so that this process needn't open the native library."""
    with Child("machine", _describe_machine, {}, environment=environment) as child:
        report: dict[str, Any] = child.start().result()
        return report


# ---- In the child ----


_Service: TypeAlias = tuple[None, Callable[[Mapping[str, Any]], _Report | None]]
"""Takes requests that name a check and its arguments, and answers with its report, if it has one."""


@contextmanager
def _answer_checks(comm: Comm | None, directory: str, configuration: Sequence[Any]) -> Iterator[_Service]:
    """Start the runtime, and run checks there."""
    report_phase("starting the runtime")
    partition, scheduler, _ = configuration
    own_directory = _own_directory(comm, directory)
    with Runtime(partition, scheduler, comm) as runtime:
        yield _service(Place(runtime, own_directory), comm)


@contextmanager
def _answer_alone(comm: Comm | None, directory: str) -> Iterator[_Service]:
    """Start nothing, and run checks."""
    _own_directory(comm, directory)
    yield _service(Workplace(Path(directory), comm), comm)


def _service(place: Place | Workplace, comm: Comm | None) -> _Service:
    def answer(request: Mapping[str, Any]) -> _Report | None:
        report_phase(f"running {request['function']}")
        result: Result | None = find_function(request)(place, **request["arguments"])
        results = [found for found in (comm.allgather(result) if comm else [result]) if found is not None]
        return worst_of(results).as_json() if results else None

    return None, answer


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


class Pool(pool.Pool):
    """A pool of children that run checks; the values of their answers are results, or None.

    A check gets a ``Place``, or without a runtime a ``Workplace``.
    """

    services = pool.Services(_answer_checks, _answer_alone, Result.from_json)
