"""The fixtures, and the ``Checker`` with which a test runs checks in other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from starpullm.errors import StateError
from starpullm.options import REDUCTIONS, RuntimeConfiguration
from starpullm.pytest_plugin.entries import entry_of
from starpullm.pytest_plugin.plugin_options import UnknownMachineError
from starpullm.pytest_plugin.ranked_run import runs_on_every_rank
from starpullm.pytest_plugin.validation import Validation, validation_of

if TYPE_CHECKING:
    from starpullm import Runtime, Trainer
    from starpullm.checks.references import Reference
    from starpullm.checks.result import Result
    from starpullm.checks.suite_items import Item
    from starpullm.golden.records import GoldenRecord
    from starpullm.probe import ProbeResult
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

    The function is called with a ``starpullm.checks.check_context.CheckContext`` and the arguments. It returns a
    result, or nothing if its assert statements are what it compares. A check of the package is given by its name. The
    test passes, fails or is skipped as the result says. A crash or a hang fails this test only.
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
    from starpullm.checks.cases import find_record

    return find_record(request.param)


@pytest.fixture
def starpullm_reference(
    starpullm_validation: Validation, starpullm_golden: GoldenRecord, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    """Give what to compare with: llm.c if ``--starpullm-llmc-library`` is given, otherwise ``starpullm_golden``."""
    from starpullm.checks.llmc_reference import run_llmc
    from starpullm.checks.references import GoldenReference
    from starpullm.checks.training import make_inputs

    directory = tmp_path_factory.mktemp("reference")
    checkpoint = make_inputs(starpullm_golden, directory)
    if starpullm_validation.llmc_library:
        return run_llmc(starpullm_validation.llmc_library, starpullm_golden, checkpoint, directory)
    return GoldenReference(starpullm_golden, checkpoint)


@pytest.fixture
def starpullm_trainer(
    request: pytest.FixtureRequest, starpullm_runtime: Runtime, starpullm_golden: GoldenRecord, tmp_path: Path
) -> Iterator[Trainer]:
    """Make a ``Trainer`` with the model and settings of ``starpullm_golden``, before its first step.

    It keeps activations and records a trace. The runtime has the functions of the test's ``starpullm_reference``.
    """
    from starpullm.checks.check_context import CheckContext
    from starpullm.checks.training import new_trainer

    has_reference = "starpullm_reference" in request.fixturenames
    platform = has_reference and request.getfixturevalue("starpullm_reference").platform_functions
    starpullm_runtime.restart(platform_functions=platform)
    with new_trainer(CheckContext(starpullm_runtime, tmp_path), starpullm_golden, trace=True) as new:
        yield new
    starpullm_runtime.restart()


@pytest.fixture
def starpullm_trace(starpullm_validation: Validation, starpullm_trainer: Trainer) -> Trace:
    """Give the ``Trace`` of four steps of ``starpullm_trainer`` on generated batches, submitted without waiting."""
    from starpullm.checks.training import trace_steps

    return trace_steps(starpullm_trainer, starpullm_validation.seed)


@pytest.fixture(scope="session")
def starpullm_program() -> Callable[..., ProbedProgram]:
    """Give a function from a StarPU program and its arguments to a `ProbedProgram`, which can be probed."""
    return ProbedProgram


class ProbedProgram:
    """A StarPU program with its arguments: ``starpullm_program("./heat", "-n", "8").probe(runs=5)``."""

    def __init__(self, *command: str) -> None:
        self.command = tuple(map(str, command))

    def probe(self, *, same: bool = True, **options: Any) -> ProbeResult:
        """Probe the program, and fail the test unless its results are the same in all schedules.

        The options are those of `starpullm.probe.probe_program`. With ``same=False`` the result is returned whatever
        it is. A program that can't be judged raises an `InvalidArgumentError`.
        """
        from starpullm.checks.result import Outcome
        from starpullm.probe import probe_program

        result = probe_program(self.command, **options)
        if same and result.outcome is not Outcome.PASSED:
            pytest.fail("\n".join(result.lines()), pytrace=False)
        return result


class Checker:
    """Runs the checks of one test; their outcomes decide the test's."""

    def __init__(self, validation: Validation, node: pytest.Item, configuration: RuntimeConfiguration | None) -> None:
        self.configuration = configuration
        if validation.ranks > 1 and runs_on_every_rank(node):
            pytest.fail(
                f"{node.nodeid}: its checks start ranks of their own, so the test can't run on every rank: mark it "
                "starpullm_over_ranks instead of mpi",
                pytrace=False,
            )
        self._validation = validation
        self._entry = entry_of(node)
        self._entry.configuration = str(configuration) if configuration else "all"
        self._place = f"{node.name.partition('[')[0]} on {self._entry.configuration}"
        self._unfinished: Result
        """Stands for the result of the check that has begun."""

    def __call__(self, function: Callable[..., Result | None] | str, **arguments: Any) -> None:
        """Run a check on the test's configuration; fail or skip the test unless the check passed.

        A check of the package is known by its name; the arguments are then the fields of its `Case`.
        """
        from starpullm.binding import allocations
        from starpullm.checks.cases import Case
        from starpullm.checks.check import StandaloneCheck, Where, all_checks
        from starpullm.checks.suite_items import Item
        from starpullm.checks.user_function import run_user_function
        from starpullm.processes.children import location_of

        assert self.configuration is not None
        self.begin(getattr(function, "__name__", str(function)))
        if isinstance(function, str):
            ranks = self.configuration.ranks
            checks = [check for check in all_checks().values() if not isinstance(check, StandaloneCheck)]
            usable = (check for check in checks if check.needs.allow(ranks) and check.needs.where is not Where.TOGETHER)
            known = {check.name: check for check in usable}
            if function not in known:
                self.give_up(f"found no such check for ranks {ranks}, expected a function or one of {', '.join(known)}")
            case = Case(**{"sub_batches": 1, "reduction": REDUCTIONS[0], **arguments})
            self.check(Item(known[function], case, self.configuration))
            return
        environment = allocations.preloading() if arguments.pop("counts_allocations", False) else {}
        request = partial(run_user_function, location=location_of(function), arguments=arguments)
        result = self._ask(self.configuration, request, environment=environment)
        if result is None:
            self.give_up("it returned nothing and asserted nothing, expected a result or an assertion")
        self.judge(result)

    def check(self, item: Item) -> None:
        """Run an item of the suite; fail or skip the test unless the check passed."""
        self._begin(item.unfinished())
        self.judge(item.run(self._ask))

    def _ask(self, configuration: RuntimeConfiguration | None, request: partial[Any], **options: Any) -> Any:
        """Return what a child answers, as `Pool.ask`; fail the test if there is no answer."""
        from starpullm.processes.children import Hung
        from starpullm.processes.service import Answered, Raised

        try:
            reply = self._validation.pool.ask(configuration, request, time_limit=self._validation.time_limit, **options)
        except StateError as error:
            self.give_up(str(error))
        if not isinstance(reply, Answered):
            ending = "hit its time limit" if isinstance(reply, Hung) else "lost its process"
            ending = "raised an exception" if isinstance(reply, Raised) else ending
            self.give_up(reply.text.removeprefix(f"{self.configuration or 'run_check'}: "), ending)
        return reply.value

    def begin(self, name: str) -> None:
        """Let a check have no result until it is judged."""
        from starpullm.checks.result import Outcome, Result

        self._entry.results.append({})
        self._begin(Result(check=name, outcome=Outcome.NO_RESULT, compared=0, where=self._place))

    def _begin(self, unfinished: Result) -> None:
        self._unfinished, self._entry.results[-1] = unfinished, unfinished.as_json()

    def judge(self, *results: Result) -> None:
        """Fail or skip the test unless all checks passed."""
        from starpullm.checks.result import Outcome

        texts = []
        self._entry.results.pop()
        named = (replace(report, where=report.where or self._place) for report in results)
        for report in sorted(named, key=lambda report: report.outcome is not Outcome.FAILED):
            self._entry.results.append(report.as_json())
            if report.outcome is not Outcome.PASSED:
                texts += report.first_lines(MAX_LINES)
        if any(report.outcome is Outcome.FAILED for report in results):
            pytest.fail("\n".join(texts), pytrace=False)
        if texts:
            pytest.skip("\n".join(texts))

    def give_up(self, failure: str, ending: str = "no result") -> NoReturn:
        """Fail the test because the check had no result; ``failure`` is all that is known of the reason."""
        sentence, *rest = failure.splitlines()
        self._entry.ending = ending
        self._begin(replace(self._unfinished, sentence=sentence))
        pytest.fail("\n".join([*self._unfinished.lines(), *rest]), pytrace=False)
