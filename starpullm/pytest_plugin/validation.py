"""One run of pytest with the plugin: its options, the processes of its checks, and its results."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.processes.mpirun import host_name
from starpullm.processes.rank_wrapper import rank_and_size_from_environment
from starpullm.pytest_plugin.entries import (
    PREFIX,
    REFUSAL,
    begin_attempt,
    compares_in_test,
    entry_of,
    is_worker,
    uses_plugin,
)
from starpullm.pytest_plugin.plugin_options import Options, UnknownMachineError
from starpullm.pytest_plugin.ranked_run import names_suite
from starpullm.pytest_plugin.report import Report, message_of
from starpullm.pytest_plugin.report_files import ReportFiles

if TYPE_CHECKING:
    from starpullm.checks.left_out import LeftOut
    from starpullm.processes.children import Pool


class Validation(Options):
    """One run of pytest: its options, the processes of its checks, and its results."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._patch = pytest.MonkeyPatch()
        self._pool: Pool | None = None
        self.results = Report()
        self._files = ReportFiles(config, self)
        config.pluginmanager.register(self._files, "starpullm-report")
        self._environment_shown = False
        self._checked = False
        self.left_out: dict[str, LeftOut] = {}
        """What no test was collected for."""
        self._timer: tuple[pytest.Item, Any] | None = None
        """The test whose time pytest-timeout measures, and its settings."""
        self._waited = 0.0
        self._waited_in_phase = 0.0

    def require_options(self) -> None:
        """Check the options; called for each test that uses the plugin, because they concern no other one."""
        with self.refusing():
            if not self._checked:
                self._checked = True
                self.check_options()
                if self.library is not None:  # for this process and its children
                    self._patch.setenv("STARPULLM_LIB", str(self.library))
        if REFUSAL in self._config.stash:
            raise pytest.UsageError(self._config.stash[REFUSAL])

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Let a usage error of the plugin's, which is raised inside, end the run; workers tell it their controller."""
        try:
            yield
        except pytest.UsageError as error:
            text = self._config.stash.setdefault(REFUSAL, str(error))
            if is_worker(self._config):
                report = pytest.CollectReport("", "failed", text, [])
                vars(report)["starpullm_refusal"] = text
                self._config.hook.pytest_collectreport(report=report)
            raise

    @property
    def pool(self) -> Pool:
        """The processes of the checks; created at the first use."""
        from starpullm.checks.check_context import serve_checks
        from starpullm.processes.children import Pool

        if self._pool is None:
            environment = {"STARPU_RAND_SEED": str(self.seed)}
            self._pool = Pool(serve_checks, environment, sticky=not self.fresh, hold=self.hold_machine)
        return self._pool

    @contextmanager
    def hold_machine(self) -> Iterator[None]:
        """Hold the machine's lock. The wait for it is told, isn't the test's time, and pytest-timeout's clock stops."""
        from starpullm.processes.lock import machine_lock

        began = 0.0

        def begin_wait(sentence: str) -> None:
            nonlocal began
            began = time.monotonic()
            if timer is not None:
                timer[0].config.hook.pytest_timeout_cancel_timer(item=timer[0])
            self._say(sentence)

        timer = self._timer
        with ExitStack() as stack:
            try:
                stack.enter_context(machine_lock(begin_wait, self.wait_limit))
            finally:
                if began:
                    waited = time.monotonic() - began
                    self._waited += waited
                    self._waited_in_phase += waited
                    if timer is not None:
                        timer[0].config.hook.pytest_timeout_set_timer(item=timer[0], settings=timer[1])
            yield

    def _say(self, sentence: str) -> None:
        """Show a sentence while a test runs; workers of pytest-xdist, which wait for each other, show nothing."""
        plugins = self._config.pluginmanager
        reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
        if reporter is not None and self.rank == 0:
            with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
                reporter.ensure_newline()
                reporter.write_line(f"starpullm: {sentence}")

    def close(self) -> None:
        """End the processes, and restore the environment; may be called twice."""
        if self._pool is not None:
            self._pool.close()
        self._patch.undo()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """End the run if the plugin's options can't be satisfied; xdist's workers leave that to their controller."""
        refusal = getattr(report, "starpullm_refusal", self._config.stash.get(REFUSAL, None))
        if refusal is not None and not is_worker(self._config):
            raise pytest.UsageError(refusal)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Look at the machine, if tests that use the plugin are about to run: nothing is started to collect them."""
        if self._config.option.collectonly or not any(map(uses_plugin, items)):
            return
        try:
            with self.refusing():
                try:
                    self.check_machine()
                except UnknownMachineError as error:  # tests of others fail one by one, and everything else runs
                    if names_suite(self._config):
                        raise pytest.UsageError(f"starpullm: {error}") from error
        except pytest.UsageError:
            if not is_worker(self._config):
                raise

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin an attempt at a test; other plugins repeat tests."""
        if uses_plugin(item):
            begin_attempt(item)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """Note that pytest-timeout begins to measure a test's time; nothing is returned, so its own hook follows."""
        self._timer = item, settings

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> None:
        """Note that it has stopped."""
        self._timer = None

    def pytest_keyboard_interrupt(self) -> None:
        """Say where the process of a check was."""
        from starpullm.processes.progress import where

        if self._pool is not None:
            self._say(f"interrupted ({where()})")

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        """Show the environment if a test uses the plugin."""
        if is_worker(config) or self.rank > 0 or config.option.collectonly or not any(map(uses_plugin, items)):
            return []
        self._environment_shown = True
        return [f"starpullm: {line}" for line in self._environment_lines()]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the results of the checks to the report; fail a test that has compared nothing, or if strict a skip."""
        if not uses_plugin(item):
            return (yield)
        waited, self._waited_in_phase = self._waited_in_phase, 0.0
        entry = entry_of(item)
        others = [(name, value) for name, value in item.user_properties if not name.startswith(PREFIX)]
        item.user_properties[:] = [*others, *entry.properties()]
        report = yield
        report.duration = max(report.duration - waited, 0.0)
        has_passed = report.when == "call" and report.passed and not hasattr(report, "wasxfail")
        if has_passed and not entry.results and not compares_in_test(item):
            report.outcome = "failed"
            report.longrepr = (
                "the test has compared nothing that starpullm knows of, expected a call of starpullm_check; a test of "
                "another kind needs neither this fixture nor a marker of starpullm"
            )
        if self.strict and report.skipped and not hasattr(report, "wasxfail"):
            reason = message_of(report)
            report.outcome = "failed"
            report.longrepr = f"{reason}\n--starpullm-strict: expected a result, not a skip"
        vars(report)["starpullm"] = dict(vars(entry))  # an attribute, because pytest-xdist serialises those
        if is_worker(self._config):  # its first report says what was collected
            vars(report)["starpullm_expected"], self.results.tests = self.results.tests, {}
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report to the summary and the JSON file."""
        self.results.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the processes, and write the report."""
        if self._pool is not None:
            self._pool.close()
            self.results.costs += self._pool.costs
            self.results.notes += self._pool.failures
            nodes = os.environ.get("SLURM_JOB_NUM_NODES", "1")
            if nodes != "1" and rank_and_size_from_environment() == (0, 1):
                self.results.notes.append(
                    f"all checks were on {host_name()}, one of {nodes} nodes of this allocation; no check has used the "
                    "others, expected `mpirun starpullm parity` for them"
                )
            if self._pool.failures and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if is_worker(self._config):
            vars(self._config)["workeroutput"]["starpullm_costs"] = dict(self.results.costs)
        elif self.rank == 0:
            self._files.finish(session)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the costs of the checks of a pytest-xdist worker."""
        self.results.costs.update(getattr(node, "workeroutput", {}).get("starpullm_costs", {}))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Write a line for each family and configuration, above pytest's failures."""
        report = self.results
        if self.rank == 0 and (report.tests or report.notes):
            terminalreporter.section("starpullm", "=")
            environment = [] if self._environment_shown else self._environment_lines()
            left_out = [f"left out: {entry.what}: {entry.reason}" for entry in self.left_out.values()]
            waited = [f"waited {self._waited:.1f} s for the machine, which others used"] if self._waited >= 0.1 else []
            for line in [*environment, *report.lines(), *left_out, *waited]:
                terminalreporter.line(line)
        return (yield)

    def _environment_lines(self) -> list[str]:
        try:
            machine = self.machine
        except UnknownMachineError as error:
            return [f"unknown: {error}"]
        return [
            f"{machine['version']}, {machine['library']}",
            f"StarPU {machine['starpu_version']}, kernels {machine['simd_level']}, {machine['cores']} cores, "
            f"{machine['processor']}",
        ]


VALIDATION = pytest.StashKey[Validation]()


def validation_of(config: pytest.Config) -> Validation:
    """Return the run of a pytest configuration."""
    validation = config.stash.get(VALIDATION, None)
    if validation is None:
        raise pytest.UsageError(
            "starpullm: the suite needs starpullm's plugin, which this pytest has not loaded: expected starpullm and "
            "pytest in one environment and no -p no:starpullm, or else -p starpullm.pytest_plugin"
        )
    return validation
