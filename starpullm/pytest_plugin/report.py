"""The results of a run: collected test by test, and shown as a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from starpullm.pytest_plugin.entries import FAMILIES

OUTCOMES = ("passed", "failed", "skipped")
"""How a test can end; a report with another outcome is that of an attempt that is repeated."""


class Report:
    """The tests that use the plugin, and notes on the run itself."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.costs: Counter[str] = Counter()
        """Of the checks of this process, and under pytest-xdist of those of its workers: see ``Pool``."""
        self.tests: dict[str, dict[str, Any]] = {}
        self._lost: list[pytest.TestReport] = []

    def expect(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Count tests as unfinished until they have ended; entries are the fields of ``Entry`` by test."""
        for test, entry in entries.items():
            begin = {"outcome": "unfinished", "ending": "not run", "seconds": 0.0, "message": "", "repeated": []}
            self.tests.setdefault(test, {"test": test, **entry, **begin})

    def add(self, report: pytest.TestReport) -> None:
        """Add a phase of a test, if the test uses the plugin."""
        found = getattr(report, "starpullm", None)
        if found is None:
            if str(report.when) == "???":  # pytest-xdist has lost the worker
                self._lost.append(report)
            return
        self.expect(getattr(report, "starpullm_expected", {}))
        self.expect({report.nodeid: found})
        test, message = self.tests[report.nodeid], "" if report.passed else message_of(report)
        test["seconds"] += report.duration
        unfinished = test["outcome"] == "unfinished" and test["reruns"] == found["reruns"]
        if report.outcome not in OUTCOMES:
            test["repeated"].append(message)
            test.update(found, outcome="unfinished", ending="running", reruns=found["reruns"] + 1)
        elif test["outcome"] == "failed":
            test["message"] = "\n".join(filter(None, (test["message"], message)))
        elif not report.passed or (report.when == "teardown" and unfinished):
            test.update(found, outcome=report.outcome, message=message, ending=_ending(report, found))

    def end(self) -> None:
        """Say how tests have ended that had begun: interrupted, or lost with a worker of pytest-xdist."""
        for test in self.tests.values():
            test["ending"] = test["ending"].replace("running", "interrupted")
        for report in self._lost:
            if report.nodeid in self.tests:
                lost = {"outcome": "failed", "ending": "lost its worker", "message": message_of(report)}
                self.tests[report.nodeid].update(lost)

    def lines(self) -> list[str]:
        """Return a line for each family and configuration, the cost of the processes, and the notes."""
        from starpullm.report.document import counted, grouped

        groups = grouped(self.tests.values(), lambda test: (test["family"], test["configuration"]))
        order = [*FAMILIES, "other"]
        rows = []
        for (family, configuration), tests in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
            own = sum(test["outcome"] == "passed" and not test["results"] for test in tests)
            outcomes = counted(tests)
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


def _ending(report: pytest.TestReport, found: Mapping[str, Any]) -> str:
    """Return how a test has ended, in a few words."""
    if report.passed or hasattr(report, "wasxfail"):
        return "passed" if report.passed else "expected failure"
    if report.failed and report.when in ("setup", "teardown"):
        return f"error in {report.when}"
    decided = (result["outcome"] for result in found["results"] if result["outcome"] not in ("passed", "no result"))
    return found["ending"] or next(decided, report.outcome)


def message_of(report: pytest.TestReport) -> str:
    """Return why a test failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    # longreprtext would begin with the worker of pytest-xdist.
    return "" if report.longrepr is None else str(report.longrepr)
