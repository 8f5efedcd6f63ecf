"""The fixtures, and the ``Checker`` with which a test runs checks in other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from starpullm.errors import StateError
from starpullm.pytest_plugin.items import ENTRY, Entry, family_of
from starpullm.pytest_plugin.options import UnknownMachineError
from starpullm.pytest_plugin.ranks import runs_on_every_rank
from starpullm.pytest_plugin.run import Validation, validation_of

if TYPE_CHECKING:
    from starpullm import Runtime, Trainer
    from starpullm.checks.isolation import CheckReport, RuntimeConfiguration
    from starpullm.checks.references import Reference
    from starpullm.checks.result import CheckResult
    from starpullm.checks.workplace import Workplace
    from starpullm.golden.records import GoldenRecord
    from starpullm.processes.children import Reply
    from starpullm.trace import Trace

MAX_LINES = 25
"""The lines of a result that are shown; the report has all of them."""


@pytest.fixture(scope="session")
def starpullm_validation(request: pytest.FixtureRequest) -> Validation:
    """Give the options of the run, and the processes of its checks."""
    return validation_of(request.config)


@pytest.fixture(scope="session")
def starpullm_configuration(request: pytest.FixtureRequest) -> RuntimeConfiguration:
    """Give partition, scheduler and number of ranks; the test runs once for each configuration."""
    try:
        if isinstance(request.param, UnknownMachineError):
            raise request.param
        assert validation_of(request.config).machine
    except UnknownMachineError as error:
        pytest.fail(str(error), pytrace=False)
    configuration: RuntimeConfiguration = request.param
    return configuration


@pytest.fixture
def starpullm_check(
    request: pytest.FixtureRequest, starpullm_validation: Validation, starpullm_configuration: RuntimeConfiguration
) -> Checker:
    """Run a check in a process of its own: ``starpullm_check(function, **arguments)``.

    The function is called with a ``starpullm.checks.runs.Place`` and the arguments, and returns a result, or nothing if
    its assert statements are what it compares. The test passes, fails or is skipped as the result says. A crash or a
    hang fails this test only.
    """
    return Checker(starpullm_validation, request.node, starpullm_configuration)


@pytest.fixture(scope="session")
def starpullm_runtime(
    starpullm_validation: Validation,
    starpullm_configuration: RuntimeConfiguration,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runtime]:
    """Start a ``Runtime`` in pytest's own process; the configurations follow one after the other.

    In a test marked ``mpi`` the runtime uses all ranks.
    """
    from starpullm import Runtime
    from starpullm.processes.ranks import world

    partition, scheduler, ranks = starpullm_configuration
    comm = world() if ranks > 1 else None
    holds = nullcontext() if comm and comm.Get_rank() else starpullm_validation.hold_machine()
    with pytest.MonkeyPatch.context() as patch, holds:
        if "STARPU_HOME" not in os.environ:
            patch.setenv("STARPU_HOME", str(tmp_path_factory.mktemp("starpu")))
        with Runtime(partition, scheduler, comm) as runtime:
            yield runtime


@pytest.fixture(scope="session")
def starpullm_golden(request: pytest.FixtureRequest) -> GoldenRecord:
    """Give a ``GoldenRecord``; the test runs once for each chosen record."""
    from starpullm.checks.runs import find_record

    return find_record(request.param)


@pytest.fixture
def starpullm_reference(
    starpullm_validation: Validation, starpullm_golden: GoldenRecord, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    """Give what to compare with: llm.c if ``--starpullm-llmc-library`` is given, otherwise ``starpullm_golden``."""
    from starpullm.checks.llmc import run_llmc
    from starpullm.checks.parity import make_inputs
    from starpullm.checks.references import GoldenReference

    directory = tmp_path_factory.mktemp("reference")
    checkpoint = make_inputs(starpullm_golden, directory)
    library = starpullm_validation.llmc_library
    return (
        run_llmc(library, starpullm_golden, checkpoint, directory)
        if library
        else GoldenReference(starpullm_golden, checkpoint)
    )


@pytest.fixture
def starpullm_trainer(starpullm_runtime: Runtime, starpullm_golden: GoldenRecord, tmp_path: Path) -> Iterator[Trainer]:
    """Make a ``Trainer`` with the model and settings of ``starpullm_golden``, before its first step.

    It keeps activations and records a trace.
    """
    from starpullm.checks.runs import Place, new_trainer

    with new_trainer(Place(starpullm_runtime, tmp_path), starpullm_golden, trace=True) as new:
        yield new


@pytest.fixture
def starpullm_trace(starpullm_validation: Validation, starpullm_trainer: Trainer) -> Trace:
    """Give the ``Trace`` of four steps of ``starpullm_trainer`` on generated batches, submitted without waiting."""
    from starpullm.checks.runs import trace_steps

    return trace_steps(starpullm_trainer, starpullm_validation.seed)


class Checker:
    """Runs the checks of one test; their outcomes decide the test's."""

    def __init__(self, validation: Validation, node: pytest.Item, configuration: RuntimeConfiguration | None) -> None:
        self.configuration = configuration
        if runs_on_every_rank(node) and validation.ranks > 1:
            pytest.fail(
                f"{node.nodeid}: its checks start ranks of their own, so the test can't run on every rank: mark it "
                "starpullm_over_ranks instead of mpi",
                pytrace=False,
            )
        self._validation = validation
        self._entry = node.stash.setdefault(ENTRY, Entry())
        self._is_parity = family_of(node) == "parity" and not validation.skip_unknown_libm
        self._entry.configuration = str(configuration) if configuration else "all"

    def __call__(self, function: Callable[..., CheckResult | None], **arguments: object) -> None:
        """Run a check on the test's configuration; fail or skip the test unless the check passed."""
        assert self.configuration is not None
        report = self.run(self.configuration, function, **arguments)
        if report is None:
            self.give_up(
                f"{function.__name__} returned nothing and asserted nothing, expected a result or an assertion"
            )
        self.judge(report)

    def run(
        self, configuration: RuntimeConfiguration, function: Callable[..., CheckResult | None], **arguments: Any
    ) -> CheckReport | None:
        """Call a function in the process of a configuration; fail the test if there is no answer."""
        from starpullm.checks.own import is_own, run_own
        from starpullm.processes.children import Answered, location_of

        called: Callable[..., CheckResult | None] = function
        if is_own(function):
            counts = {"counts_allocations": arguments.pop("counts_allocations", False)}
            arguments = {**counts, "location": location_of(function), "arguments": arguments}
            called = run_own
        reply: Reply | str
        try:
            reply = self._validation.pool.call(
                configuration, called, time_limit=self._validation.time_limit, **arguments
            )
        except StateError as error:
            reply = str(error)
        if not isinstance(reply, Answered):
            self.give_up(reply if isinstance(reply, str) else reply.text)
        report: CheckReport | None = reply.value
        return report

    def alone(self, function: Callable[[Workplace], CheckResult], **options: Any) -> None:
        """Run a check that starts runtimes itself, in a process of its own; options as ``Pool.call_alone``."""
        from starpullm.processes.children import Answered

        reply: Reply | str
        try:
            reply = self._validation.pool.call_alone(function, time_limit=self._validation.time_limit, **options)
        except StateError as error:
            reply = str(error)
        if not isinstance(reply, Answered):
            self.give_up(reply if isinstance(reply, str) else reply.text)
        self.judge(reply.value)

    def judge(self, *results: CheckResult | CheckReport) -> None:
        """Fail or skip the test unless all checks passed."""
        from starpullm.checks.isolation import CheckReport
        from starpullm.checks.result import Outcome

        reports = [result if isinstance(result, CheckReport) else CheckReport.of(result) for result in results]
        texts = []
        for report in sorted(reports, key=lambda report: report.outcome is not Outcome.FAILED):
            self._entry.results.append({**report.details, "name": report.name, "outcome": report.outcome.value})
            more = len(report.lines) - MAX_LINES
            if report.outcome is not Outcome.PASSED:
                texts += [*report.lines[:MAX_LINES], *([f"  … and {more} more lines"] if more > 0 else [])]
        if any(report.outcome is Outcome.FAILED for report in reports):
            pytest.fail("\n".join(texts), pytrace=False)
        if self._is_parity and any(report.outcome is Outcome.NOT_COMPARABLE for report in reports):
            expected = "expected the records' libm, --starpullm-llmc-library, or --starpullm-skip-unknown-libm"
            pytest.fail("\n".join([*texts, expected]), pytrace=False)
        if texts:
            pytest.skip("\n".join(texts))

    def give_up(self, failure: str) -> NoReturn:
        """Fail the test because the check had no result; ``failure`` is all that is known of the reason."""
        self._entry.failure = failure
        pytest.fail(failure, pytrace=False)
