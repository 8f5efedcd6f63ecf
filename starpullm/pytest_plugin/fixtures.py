"""The fixtures, and the ``Checker`` through which a test runs checks in other processes.

pytest finds them through the plugin; the suite and users' tests ask for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from starpullm.pytest_plugin.items import ENTRY, Entry
from starpullm.pytest_plugin.ranks import runs_on_every_rank
from starpullm.pytest_plugin.run import Validation, validation_of

if TYPE_CHECKING:
    from starpullm import Runtime, Trainer
    from starpullm.checks.isolation import Answer, CheckReport, RuntimeConfiguration
    from starpullm.checks.references import Reference
    from starpullm.checks.result import CheckResult
    from starpullm.golden.records import GoldenRecord
    from starpullm.trace import Trace

__all__ = [
    "Checker",
    "golden",
    "reference",
    "starpu_runtime",
    "starpullm_check",
    "starpullm_configuration",
    "starpullm_validation",
    "task_trace",
    "trainer",
]

MAX_LINES = 25
"""So many lines of a result are shown; the report has all of it."""


@pytest.fixture(scope="session")
def starpullm_validation(request: pytest.FixtureRequest) -> Validation:
    """Give the run's options, and the processes that its checks run in."""
    return validation_of(request.config)


@pytest.fixture(scope="session")
def starpullm_configuration(request: pytest.FixtureRequest) -> RuntimeConfiguration:
    """Partition and scheduler; a test that asks for it runs once for each."""
    configuration: RuntimeConfiguration = request.param
    return configuration


@pytest.fixture
def starpullm_check(
    request: pytest.FixtureRequest, starpullm_validation: Validation, starpullm_configuration: RuntimeConfiguration
) -> Checker:
    """Run a check in a process of its own: ``starpullm_check(function, **arguments)``.

    The function gets a ``starpullm.checks.runs.Place`` and the arguments, and returns a result. Unless that passed, the
    test fails, or is skipped if nothing could be compared. A crash or a hang fails this test only.
    """
    return Checker(starpullm_validation, request.node, starpullm_configuration)


@pytest.fixture(scope="session")
def starpu_runtime(
    starpullm_configuration: RuntimeConfiguration, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """Start a ``Runtime`` in pytest's own process, one after the other for each partition and scheduler.

    In a test marked ``mpi`` it is over all ranks.
    """
    from starpullm import Runtime
    from starpullm.processes.lock import machine_lock
    from starpullm.processes.ranks import world

    partition, scheduler, ranks = starpullm_configuration
    comm = world() if ranks > 1 else None
    with pytest.MonkeyPatch.context() as patch, machine_lock() if not (comm and comm.Get_rank()) else nullcontext():
        if "STARPU_HOME" not in os.environ:
            patch.setenv("STARPU_HOME", str(tmp_path_factory.mktemp("starpu")))
        with Runtime(partition, scheduler, comm) as runtime:
            yield runtime


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> GoldenRecord:
    """Give a ``GoldenRecord``; a test that asks for it runs once for each of the chosen ones."""
    from starpullm.checks.runs import find_record

    return find_record(request.param)


@pytest.fixture
def reference(
    starpullm_validation: Validation, golden: GoldenRecord, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    """Give what is to be compared with, and its values: llm.c if ``--llmc-lib`` names it, else ``golden``."""
    from starpullm.checks.llmc import run_llmc
    from starpullm.checks.parity import make_inputs
    from starpullm.checks.references import GoldenReference

    directory = tmp_path_factory.mktemp("reference")
    checkpoint = make_inputs(golden, directory)
    library = starpullm_validation.llmc_library
    return run_llmc(library, golden, checkpoint, directory) if library else GoldenReference(golden, checkpoint)


@pytest.fixture
def trainer(starpu_runtime: Runtime, golden: GoldenRecord, tmp_path: Path) -> Iterator[Trainer]:
    """Make a ``Trainer`` of the record's model and settings, before its first step; it keeps activations and traces."""
    from starpullm.checks.runs import Place, new_trainer

    with new_trainer(Place(starpu_runtime, tmp_path), golden, trace=True) as new:
        yield new


@pytest.fixture
def task_trace(request: pytest.FixtureRequest, trainer: Trainer) -> Trace:
    """Give the ``Trace`` of four steps of generated batches, submitted one upon the other to ``trainer``."""
    from starpullm.checks.runs import trace_steps

    return trace_steps(trainer, request.config.getoption("--starpullm-seed"))


class Checker:
    """Runs checks for one test, and makes their outcomes the test's."""

    def __init__(self, validation: Validation, node: pytest.Item, configuration: RuntimeConfiguration | None) -> None:
        self.configuration = configuration
        if runs_on_every_rank(node) and validation.ranks > 1:
            pytest.fail(
                f"{node.nodeid}: its check has processes of its own, so the test can't run on every rank as well: mark "
                "it over_ranks instead of mpi",
                pytrace=False,
            )
        self._validation = validation
        self._entry = node.stash.setdefault(ENTRY, Entry())
        self._entry.configuration = str(configuration) if configuration else "all"

    def __call__(self, function: Callable[..., CheckResult], **arguments: object) -> None:
        """Run a check where the test runs, and fail or skip the test unless it passed."""
        assert self.configuration is not None
        answer = self.run(self.configuration, function, **arguments)
        if not answer.reports:
            pytest.fail(f"{function.__name__} returned nothing, expected a result", pytrace=False)
        self.judge(answer.reports[0])

    def run(
        self, configuration: RuntimeConfiguration, function: Callable[..., CheckResult | None], **arguments: Any
    ) -> Answer:
        """Call a function in the process of a configuration; fail the test if it doesn't answer."""
        answer = self._validation.pool.call(
            configuration, function, time_limit=self._validation.time_limit, **arguments
        )
        if answer.ending != "answered":
            self.give_up(answer.failure)
        return answer

    def judge(self, *reports: CheckReport) -> None:
        """Fail or skip the test unless all these checks passed."""
        from starpullm.checks.result import Outcome

        texts = []
        for report in sorted(reports, key=lambda report: report.outcome is not Outcome.FAILED):
            self._entry.results.append({**report.details, "name": report.name, "outcome": report.outcome.value})
            more = len(report.lines) - MAX_LINES
            if report.outcome is not Outcome.PASSED:
                texts += [*report.lines[:MAX_LINES], *([f"  … and {more} lines more"] if more > 0 else [])]
        if any(report.outcome is Outcome.FAILED for report in reports):
            pytest.fail("\n".join(texts), pytrace=False)
        if texts:
            pytest.skip("\n".join(texts))

    def give_up(self, failure: str) -> NoReturn:
        """Fail the test because the check had no result, with everything that is known of the reason."""
        self._entry.failure = failure
        pytest.fail(failure, pytrace=False)
