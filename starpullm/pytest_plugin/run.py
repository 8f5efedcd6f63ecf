"""One run of pytest with the plugin: its options, the processes of its checks, and its results."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.pytest_plugin.items import ENTRY, Entry, configuration_of, family_of, uses_plugin
from starpullm.pytest_plugin.options import Options, check_file
from starpullm.pytest_plugin.report import Report, message_of
from starpullm.pytest_plugin.report_files import ReportFiles

if TYPE_CHECKING:
    from starpullm.checks.isolation import Costs, Pool


class Validation(Options):
    """One run of pytest: its options, the processes of its checks, and its results."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._patch = pytest.MonkeyPatch()
        self._pool: Pool | None = None
        self._report = Report()
        self._files = ReportFiles(config, self, self._report)
        self._costs: Costs | None = None
        """Of the checks of this process, and under pytest-xdist of those of its workers."""
        self._environment_shown = False

    def choose_library(self) -> None:
        """Let this process and its children open the library of ``--starpullm-lib``."""
        check_file("--starpullm-lib", self.library)
        if self.library is not None:
            self._patch.setenv("STARPULLM_LIB", str(self.library))

    @property
    def pool(self) -> Pool:
        """The processes of the checks; created at the first use."""
        from starpullm.checks.isolation import Pool

        if self._pool is None:
            fresh = self._config.getoption("--starpullm-fresh")
            self._pool = Pool({"STARPU_RAND_SEED": str(self.seed)}, sticky=not fresh)
        return self._pool

    def close(self) -> None:
        """End the processes, and restore the environment; may be called twice."""
        if self._pool is not None:
            self._pool.close()
        self._patch.undo()

    # Hooks of pytest

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Keep which tests of the plugin were left out, and why."""
        self._files.add_deselected(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Begin the report in a folder."""
        self._files.begin(session)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say in the report which test is running."""
        self._files.add_running(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Take it out of the tests that are running."""
        self._files.remove_running(nodeid)

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        """Show the environment if a test uses the plugin."""
        if hasattr(config, "workerinput") or config.option.collectonly or not any(map(uses_plugin, items)):
            return []
        self._environment_shown = True
        return [f"starpullm: {line}" for line in self._environment_lines()]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the results of the checks to the report; with ``--starpullm-strict``, turn a skip into a failure."""
        report = yield
        if not uses_plugin(item):
            return report
        strict = self._config.getoption("--starpullm-strict")
        if strict and report.skipped and not hasattr(report, "wasxfail"):
            reason = message_of(report)
            report.outcome = "failed"
            report.longrepr = f"{reason}\n--starpullm-strict: expected a result, not a skip"
        if report.when == "call" or not report.passed:
            entry = item.stash.get(ENTRY, Entry())
            vars(report)["starpullm"] = {  # an attribute, because pytest-xdist serialises those
                "family": family_of(item),
                "configuration": entry.configuration or configuration_of(item),
                "results": entry.results,
                "failure": entry.failure,
            }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report to the summary and the JSON file."""
        self._report.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record runs for the report, end the processes, and write the report."""
        self._files.record(session, lambda: self.pool)
        if self._pool is not None:
            self._pool.close()
            self._add_costs(self._pool.costs)
            self._report.notes += self._pool.failures
            if self._pool.failures and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if not hasattr(self._config, "workerinput"):
            self._files.finish(session, self._costs)
        elif self._costs is not None and hasattr(self._config, "workeroutput"):
            self._config.workeroutput["starpullm_costs"] = vars(self._costs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the costs of the checks of a pytest-xdist worker."""
        told = getattr(node, "workeroutput", {}).get("starpullm_costs")
        if told is not None:
            from starpullm.checks.isolation import Costs

            self._add_costs(Costs(**told))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Write a line for each family and configuration, above pytest's failures."""
        if self._report.tests or self._report.notes:
            terminalreporter.section("starpullm", "=")
            environment = [] if self._environment_shown else self._environment_lines()
            for line in [*environment, *self._report.lines(self._costs)]:
                terminalreporter.line(line)
        return (yield)

    # Implementation

    def _environment_lines(self) -> list[str]:
        machine = self.machine
        known = "known" if machine["libm_known"] else "unknown: golden records aren't comparable"
        return [
            f"{machine['version']}, {machine['library']}",
            f"StarPU {machine['starpu_version']}, kernels {machine['simd_level']}, libm {known}, "
            f"{machine['cores']} cores, {machine['processor']}",
        ]

    def _add_costs(self, costs: Costs) -> None:
        self._costs = costs if self._costs is None else self._costs + costs


VALIDATION = pytest.StashKey[Validation]()


def validation_of(config: pytest.Config) -> Validation:
    """Return the run of a pytest configuration.

    Raises
    ------
    pytest.UsageError
        If pytest has not loaded the plugin.
    """
    validation = config.stash.get(VALIDATION, None)
    if validation is None:
        raise pytest.UsageError(
            "starpullm: the suite needs starpullm's plugin, which this pytest has not loaded: expected starpullm and "
            "pytest in one environment and no -p no:starpullm, or else -p starpullm.pytest_plugin"
        )
    return validation
