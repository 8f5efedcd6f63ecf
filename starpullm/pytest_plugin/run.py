"""One run of pytest with the plugin: its options, the processes of its checks, and what came out.

The plugin makes one when pytest is configured; fixtures, and the suite's ``conftest.py``, ask for it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from starpullm.pytest_plugin.items import ENTRY, Entry, configuration_of, family_of, uses_plugin
from starpullm.pytest_plugin.options import Options
from starpullm.pytest_plugin.report import Report, message_of

if TYPE_CHECKING:
    from starpullm.isolation import Pool

__all__ = ["VALIDATION", "Validation", "validation_of"]


class Validation(Options):
    """One run of pytest: its options, the processes of its checks, and what came out."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self._patch = pytest.MonkeyPatch()
        self._pool: Pool | None = None
        self._report = Report()
        self._used = False

    def choose_library(self) -> None:
        """Let this process and its children open the library that the user named."""
        chosen = self._config.getoption("--starpullm-lib")
        if chosen is not None:
            path = Path(self._config.invocation_params.dir, chosen)
            if not path.is_file():
                raise pytest.UsageError(f"--starpullm-lib: {path}: no such file")
            self._patch.setenv("STARPULLM_LIB", str(path))

    @property
    def pool(self) -> Pool:
        """The processes of the checks, from the first use on."""
        from starpullm.isolation import Pool

        if self._pool is None:
            fresh = self._config.getoption("--starpullm-fresh")
            self._pool = Pool({"STARPU_RAND_SEED": str(self.seed)}, sticky=not fresh)
        return self._pool

    def close(self) -> None:
        """End the processes; may be called twice."""
        if self._pool is not None:
            self._pool.close()
        self._patch.undo()

    # What pytest asks for

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        """Show the environment, if a test uses the plugin."""
        self._used = any(uses_plugin(item) for item in items)
        if not self._used or config.option.collectonly:
            return []
        machine = self.machine
        known = "known" if machine["libm_known"] else "unknown: golden records aren't comparable"
        return [
            f"starpullm: {machine['version']}, {machine['library']}",
            f"starpullm: StarPU {machine['starpu_version']}, kernels {machine['simd_level']}, libm {known}, "
            f"{machine['cores']} cores, {machine['processor']}",
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what the plugin knows to the report, and make skips failures if that was asked for."""
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
            vars(report)["starpullm"] = {  # as pytest does with what plugins add: it also crosses processes
                "family": family_of(item),
                "configuration": entry.configuration or configuration_of(item),
                "results": entry.results,
                "failure": entry.failure,
            }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the summary and the JSON file need."""
        self._report.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the processes, and write the report."""
        if self._pool is not None:
            self._pool.close()
        path = self.report_path
        if path is not None and not hasattr(self._config, "workerinput"):
            costs = self._pool.costs if self._pool is not None else None
            try:
                self._report.write(path, environment=self.machine if self._used else None, seed=self.seed, costs=costs)
            except OSError as error:
                self._report.notes.append(f"--starpullm-report: {path} can't be written: {error.strerror}")
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, object, object]:
        """Write a line for each family and configuration, before pytest shows the failures."""
        if self._report:
            terminalreporter.section("starpullm", "=")
            for line in self._report.lines(self._pool.costs if self._pool is not None else None):
                terminalreporter.line(line)
        return (yield)


VALIDATION = pytest.StashKey[Validation]()


def validation_of(config: pytest.Config) -> Validation:
    """Return the run that a configuration of pytest belongs to."""
    return config.stash[VALIDATION]
