"""The results of a run: collected test by test, shown as a table at the end, and written as JSON."""

from __future__ import annotations

import errno
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from starpullm.pytest_plugin.items import MARKERS

if TYPE_CHECKING:
    from starpullm.checks.isolation import Costs

REPORT_VERSION = 1


class Report:
    """The tests that use the plugin, and notes on the run itself."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._tests: dict[str, dict[str, Any]] = {}
        self._start = time.time()

    def __bool__(self) -> bool:
        return bool(self._tests or self.notes)

    @property
    def has_tests(self) -> bool:
        """Whether a test has used the plugin."""
        return bool(self._tests)

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase of a test, if the test uses the plugin."""
        results = getattr(report, "starpullm", None)
        if results is None:
            return
        known = self._tests.get(report.nodeid)
        if known is not None and report.passed:
            return
        self._tests[report.nodeid] = {
            "test": report.nodeid,
            **results,
            "outcome": report.outcome,
            "seconds": report.duration + (known["seconds"] if known else 0),
            "message": "" if report.passed else message_of(report),
        }

    def lines(self, costs: Costs | None) -> list[str]:
        """Return a line for each family and configuration, the cost of the processes, and the notes."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for test in self._tests.values():
            groups.setdefault((test["family"], test["configuration"]), []).append(test)
        order = [*MARKERS, "other"]
        rows = []
        for (family, configuration), tests in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
            counts = Counter(test["outcome"] for test in tests)
            outcomes = [f"{counts[name]} {name}" for name in ("passed", "failed", "skipped") if counts[name]]
            rows.append((family, configuration, ", ".join(outcomes), f"{sum(test['seconds'] for test in tests):.1f} s"))
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = [
            f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
        ]
        if costs is not None and costs.served:
            lines.append(f"isolation: {costs}")
        return lines + self.notes

    def write(
        self, path: Path, *, environment: Mapping[str, Any] | None, ranks: int, seed: int, costs: Costs | None
    ) -> None:
        """Write a JSON file, either completely or not at all.

        Raises
        ------
        OSError
            If it can't be written.
        """
        report = {
            "version": REPORT_VERSION,
            "time": self._start,
            "environment": environment,
            "ranks": ranks,
            "seed": seed,
            "isolation": {
                "processes": len(costs.starts),
                "served": costs.served,
                "seconds_per_process": costs.per_process,
                "seconds_saved": costs.saved,
            }
            if costs
            else None,
            "tests": list(self._tests.values()),
        }
        if path.exists() and not path.is_file() and not path.is_dir():
            raise FileExistsError(errno.EEXIST, "expected a regular file", str(path))  # a rename would replace it
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", "utf-8")
        unfinished.rename(path)


def message_of(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.longreprtext
