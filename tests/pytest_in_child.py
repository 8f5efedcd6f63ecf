"""Runs tests that are marked `child` in processes of their own: a crash or a hang of the library is a failed test.

Tests with the same words share a process: pytest runs there with its fixtures, and each test when this process asks for
it. A conftest.py that registers `Children` lets the tests beside it be marked.
"""

from __future__ import annotations

import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from starpullm.binding import allocations
from starpullm.processes import Comm
from starpullm.processes.children import Child
from starpullm.processes.service import Answered

from .pytest_children import UNUSED, load_plugin
from .refusals import compile_refusals

_SECONDS = 100.0
"""For a test; less than pytest-timeout's, which would end pytest itself."""


class _Kind(NamedTuple):
    """What a process has; `name` tells apart those that have the same."""

    name: str
    ranks: int = 1
    preloads: str | None = None
    """``allocations``: the library that counts them; ``refusals``: also the one that lets StarPU refuse calls."""


def _kind_of(item: pytest.Item) -> _Kind | None:
    marker = item.get_closest_marker("child")
    return None if marker is None else _Kind(*marker.args, **marker.kwargs)


class Children:
    """The processes, as pytest sees them: one at a time, from the first to the last of its tests."""

    def __init__(self) -> None:
        self._child: Child | None = None

    @staticmethod
    def register(config: pytest.Config) -> None:
        """Let this pytest, unless it is one in a child, run marked tests in children."""
        config.addinivalue_line(
            "markers", "child(name, ranks, preloads): runs in a process of all tests with these words"
        )
        is_child = any(isinstance(plugin, _AskedTests) for plugin in config.invocation_params.plugins or ())
        if not is_child and not config.pluginmanager.has_plugin(__name__):
            config.pluginmanager.register(Children(), __name__)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test in its process, which ends unless the next test is one of its own."""
        kind = _kind_of(item)
        if kind is None:
            return None
        following = nextitem if nextitem is not None and _kind_of(nextitem) == kind else None
        item.session._setupstate.teardown_exact(nextitem)  # nothing is set up here; what was, need not last
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._run(item, kind, following):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        """End what an interrupted run has left."""
        if self._child is not None:
            self._child.kill()

    def _run(self, item: pytest.Item, kind: _Kind, following: pytest.Item | None) -> list[pytest.TestReport]:
        """Return the reports of a test in its process; if that is lost, the next test gets another one."""
        reply = self._start(item, kind) if self._child is None else Answered(None)
        if isinstance(reply, Answered) and self._child is not None:
            reply = self._child.ask([item.nodeid, following.nodeid if following else None], _SECONDS)
        reports: list[pytest.TestReport] = []
        lost = None
        if isinstance(reply, Answered):
            read = item.config.hook.pytest_report_from_serializable
            reports = [read(config=item.config, data=data) for data in reply.value]
        if self._child is not None and (following is None or not isinstance(reply, Answered)):
            lost, self._child = self._child.end(), None
        if not isinstance(reply, Answered):
            reports.append(_failed(item, "call", reply.text))
        elif lost is not None:
            reports.append(_failed(item, "teardown", lost.text))
        return reports

    def _start(self, item: pytest.Item, kind: _Kind) -> Any:
        paths = {str(other.path) for other in item.session.items if _kind_of(other) == kind}
        arguments = {"paths": sorted(paths), "root": str(item.config.rootpath)}
        with tempfile.TemporaryDirectory() as directory:
            environment = _preloading(kind.preloads, Path(directory)) if kind.preloads else {}
            self._child = Child(kind.name, serve_tests, arguments, ranks=kind.ranks, environment=environment)
            return self._child.start()


def _preloading(preloads: str, directory: Path) -> dict[str, str]:
    if preloads == "allocations":
        return allocations.preloading()
    # Memory that is freed is overwritten, so that using it later shows.
    return {**allocations.preloading(compile_refusals(directory)), "MALLOC_PERTURB_": "165"}


def _failed(item: pytest.Item, when: Any, text: str) -> pytest.TestReport:
    return pytest.TestReport(item.nodeid, item.location, {}, outcome="failed", longrepr=text, when=when)


# ---- In the child ----

_Reports = list[dict[str, Any]]


@contextmanager
def serve_tests(comm: Comm | None, paths: list[str], root: str) -> Iterator[tuple[None, Callable[[Any], _Reports]]]:
    """Collect the tests of files, and answer the names of one and of the next one with the reports of the first.

    A test that fails on one of several ranks is reported as it failed there.
    """
    asked = _AskedTests()
    options = ["-q", f"--rootdir={root}", "-p", "no:cacheprovider", "--timeout=0", *UNUSED, *load_plugin()]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the package has been imported already
    thread = threading.Thread(target=asked.run, args=[[*options, *paths]])
    thread.start()
    try:
        asked.wait()

        def answer(names: Any) -> _Reports:
            asked.names.put(names)
            reports = asked.wait()
            of_ranks = comm.allgather(reports) if comm else [reports]
            return next((own for own in of_ranks if any(report["outcome"] == "failed" for report in own)), reports)

        yield None, answer
    finally:
        asked.names.put(None)
        thread.join()


class _AskedTests:
    """A plugin of the pytest in a child, which runs in a thread: the main thread answers requests."""

    def __init__(self) -> None:
        self.names: queue.SimpleQueue[tuple[str, str | None] | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[_Reports | None] = queue.SimpleQueue()
        self._reports: _Reports = []

    def run(self, arguments: list[str]) -> None:
        """Run pytest until there is no further test."""
        try:
            pytest.main(arguments, plugins=[self])
        finally:
            self._replies.put(None)

    def wait(self) -> _Reports:
        """Return the reports of the test that was asked for; none when tests have been collected."""
        reports = self._replies.get()
        if reports is None:
            sys.exit("pytest has ended, expected it to wait for tests: standard output says why")
        return reports

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep what makes reports data."""
        self._config = config

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run tests by their names instead of all in a row."""
        items = {item.nodeid: item for item in session.items}
        self._replies.put([])
        while names := self.names.get():
            item, following = (items[name] if name else None for name in names)
            self._reports = []
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._replies.put(self._reports)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a report of the test that runs."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)
