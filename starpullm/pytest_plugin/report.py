"""The results of a run: collected test by test, and shown as a table at the end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from starpullm.pytest_plugin.items import FAMILIES

OUTCOMES = ("passed", "failed", "skipped")
"""How a test can end; a report with another outcome is that of an attempt that is repeated."""


class Report:
    """The tests that use the plugin, and notes on the run itself."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.costs: Counter[str] = Counter()
        """Of the checks of this process, and under pytest-xdist of those of its workers: see ``Pool``."""
        self.tests: dict[str, dict[str, Any]] = {}
        self._repeated: dict[str, list[str]] = {}
        """By test, why its attempts failed that were repeated."""

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase of a test, if the test uses the plugin."""
        results = getattr(report, "starpullm", None)
        if results is None:
            return
        known = self.tests.get(report.nodeid)
        if report.outcome not in OUTCOMES:
            self._repeated.setdefault(report.nodeid, []).append(message_of(report))
            self.tests.pop(report.nodeid, None)  # a teardown has failed after its test had passed
            return
        if known is not None and report.passed:
            return
        self.tests[report.nodeid] = {
            "test": report.nodeid,
            **results,
            "outcome": report.outcome,
            "seconds": report.duration + (known["seconds"] if known else 0),
            "message": "" if report.passed else message_of(report),
            "repeated": self._repeated.get(report.nodeid, []),
        }

    def lines(self) -> list[str]:
        """Return a line for each family and configuration, the cost of the processes, and the notes."""
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for test in self.tests.values():
            groups.setdefault((test["family"], test["configuration"]), []).append(test)
        order = [*FAMILIES, "other"]
        rows = []
        for (family, configuration), tests in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
            counts = Counter(test["outcome"] for test in tests)
            own = sum(test["outcome"] == "passed" and not test["results"] for test in tests)
            outcomes = [f"{counts[name]} {name}" for name in OUTCOMES if counts[name]]
            if own:
                outcomes[0] += f" ({own} by own assertions)"
            flaky = sum(test["outcome"] == "passed" and test["reruns"] > 0 for test in tests)
            if flaky:
                outcomes.append(f"{flaky} of them only after reruns")
            rows.append((family, configuration, ", ".join(outcomes), f"{sum(test['seconds'] for test in tests):.1f} s"))
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = [
            f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]:{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
        ]
        for test in self.tests.values():
            if test["outcome"] == "passed" and (reruns := test["reruns"]):
                from starpullm.report.failures import reason_of

                times = f"after {reruns} rerun{'s' * (reruns > 1)}"
                before = reason_of("\n".join(test["repeated"]))
                lines.append(f"flaky: {test['test']} passed {times}; before: {before}")
        if self.costs["served"]:
            lines.append(f"isolation: {self.costs['processes']} processes served {self.costs['served']} checks")
        return lines + self.notes


def message_of(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    # longreprtext would begin with the worker of pytest-xdist.
    return "" if report.longrepr is None else str(report.longrepr)
