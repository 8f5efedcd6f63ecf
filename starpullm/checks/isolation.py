"""Runs checks in child processes, of which each configuration of the runtime has one.

Checks share only the runtime: each makes a trainer of its own from the record's model, whose hash is compared before
each use, so every check begins at the initial state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from starpullm.checks.result import CheckResult, Outcome
from starpullm.checks.runs import Place
from starpullm.checks.workplace import Workplace
from starpullm.machine import inspect_machine
from starpullm.processes import pool
from starpullm.processes.children import Child, find_function
from starpullm.processes.pool import DEFAULT_TIME_LIMIT, MAX_TIME_LIMIT, Costs, RuntimeConfiguration
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import rank_list
from starpullm.runtime import Runtime

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = ["DEFAULT_TIME_LIMIT", "MAX_TIME_LIMIT", "CheckReport", "Costs", "Pool", "RuntimeConfiguration"]

_Report: TypeAlias = dict[str, Any]
"""A `CheckReport` as JSON values."""


@dataclass(frozen=True)
class CheckReport:
    """A check's result as it comes from the child: its main fields, its lines of text, and all fields as JSON."""

    name: str
    outcome: Outcome
    finding: str
    lines: tuple[str, ...]
    details: Mapping[str, Any]

    @classmethod
    def of(cls, result: CheckResult) -> CheckReport:
        """Return the report of a result."""
        return cls(result.name, result.outcome, result.finding, tuple(result.describe()), result.as_json())

    @classmethod
    def from_json(cls, report: _Report) -> CheckReport:
        """Return the report that `as_json` has described."""
        return cls(**{**report, "outcome": Outcome(report["outcome"]), "lines": tuple(report["lines"])})

    def as_json(self) -> _Report:
        """Return the report as JSON values."""
        return {**vars(self), "outcome": self.outcome.value}


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
            result: CheckResult | None = find_function(request)(place, **request["arguments"])
            report = None if result is None else CheckReport.of(result).as_json()
            return worst_report(comm.allgather(report)) if comm and report else report

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
        report = CheckReport.of(find_function(request)(workplace, **request["arguments"])).as_json()
        return worst_report(comm.allgather(report)) if comm else report

    yield None, answer


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


_OUTCOMES = [Outcome.FAILED, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE, Outcome.PASSED]


def worst_report(reports: Sequence[_Report]) -> _Report:
    """Return the first of the ranks' reports with the worst outcome, and which ranks have the same one."""
    worst = min(reports, key=lambda report: _OUTCOMES.index(Outcome(report["outcome"])))
    same = [rank for rank, report in enumerate(reports) if report["lines"] == worst["lines"]]
    heading = [] if len(same) == len(reports) else [f"on {rank_list(same)} of {len(reports)}:"]
    return {**worst, "lines": [*heading, *worst["lines"]], "details": {**worst["details"], "of_ranks": same}}


class Pool(pool.Pool):
    """A pool of children that run checks; the values of their answers are reports, or None.

    A check gets a ``Place``, or without a runtime a ``Workplace``.
    """

    services = pool.Services(_answer_checks, _answer_alone, CheckReport.from_json)
