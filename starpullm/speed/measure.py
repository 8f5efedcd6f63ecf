"""Benchmarks: the throughput of configurations, each measured in a process or in ranks of its own.

``starpullm bench`` calls it; ``python -m starpullm.speed.measure`` is what each of those processes runs.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from starpullm.errors import (
    FormatError,
    InvalidArgumentError,
    MissingDependencyError,
    RuntimeFailureError,
    StarpullmError,
)
from starpullm.processes.job import ExitedWith, Job, run_job
from starpullm.processes.progress import report_failure
from starpullm.processes.ranks import default_exit_status, guarded, rank_and_size_from_environment, world
from starpullm.speed.throughput import Configuration, Throughput, measure_throughput

__all__ = ["bench"]

# A child's exit statuses.
_REFUSED = 2  # what was asked for can't be had
_FAILED = 4


def bench(configuration: Configuration, checkpoint: Path, time_limit: float) -> Throughput:
    """Measure a configuration in a child process, or under mpirun if it has several ranks.

    Parameters
    ----------
    configuration
        What to run.
    checkpoint
        The model to start from.
    time_limit
        Seconds, after which the child is ended.

    Raises
    ------
    InvalidArgumentError
        If the configuration can't be had, with the child's sentence.
    MissingDependencyError
        If there is no mpirun for several ranks.
    RuntimeFailureError
        If the child failed otherwise, or wasn't done in time.
    """
    outcome = run_job(
        Job(
            (sys.executable, "-P", "-m", "starpullm.speed.measure", json.dumps(asdict(configuration)), str(checkpoint)),
            time_limit=time_limit,
            ranks=configuration.ranks if configuration.ranks > 1 else None,
        )
    )
    if isinstance(outcome, ExitedWith) and outcome.rank is not None:
        failure = outcome.reports[outcome.rank].failure
        if failure is not None and failure.sentence:
            kind = InvalidArgumentError if outcome.status == _REFUSED else RuntimeFailureError
            raise kind(f"{configuration}: {failure.sentence}")
    return Throughput.from_json(json.loads(outcome.completed().reports[0].stdout))


# ---- The child ----


def _exit_status(error: BaseException) -> int:
    if isinstance(error, InvalidArgumentError | FormatError | MissingDependencyError):
        return _REFUSED
    return _FAILED if isinstance(error, StarpullmError) else default_exit_status(error)


def _measure_over_ranks(configuration: Configuration, checkpoint: Path) -> Throughput | None:
    """Return the result on rank 0."""
    comm = world()

    def guard() -> AbstractContextManager[None]:
        return guarded(comm, _exit_status)

    with guard():
        result = measure_throughput(configuration, checkpoint, comm, guard)
        return result if comm.Get_rank() == 0 else None


def _main(configuration: Configuration, checkpoint: Path) -> None:
    _, size = rank_and_size_from_environment()
    result: Throughput | None
    if size > 1:
        result = _measure_over_ranks(configuration, checkpoint)
    else:
        try:
            result = measure_throughput(configuration, checkpoint)
        except StarpullmError as error:
            report_failure(_exit_status(error), str(error))
            sys.exit(_exit_status(error))
    if result is not None:
        print(json.dumps(result.as_json(), allow_nan=False))


if __name__ == "__main__":
    _main(Configuration(**json.loads(sys.argv[1])), Path(sys.argv[2]))
