"""pytest under mpirun: all ranks run the same tests and agree on each outcome; only rank 0 prints.

The plugin registers a ``RankedRun`` if pytest was started with ``--with-mpi`` on several ranks. A test marked ``mpi``
runs on all ranks, in pytest's own processes. Every other test runs on rank 0, and the other ranks take over its
reports; if it is marked ``starpullm_over_ranks``, its checks run in a job of as many ranks.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest
from _pytest.runner import runtestprotocol

from starpullm.errors import StarpullmError
from starpullm.processes.hosts import host_name
from starpullm.processes.keeper import rank_and_size_from_environment
from starpullm.pytest_plugin.report import message_of

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_PAUSE_SECONDS = 0.02
MAX_DIFFERENCES = 3
"""The tests that are named if ranks have collected different ones, each with its place in the order."""

_SEVERITY = ("passed", "skipped", "failed")


def add_mpi_option(group: pytest.OptionGroup, plugins: pytest.PytestPluginManager) -> None:
    """Add ``--with-mpi`` unless pytest-mpi is there, whose option it is."""
    if importlib.util.find_spec("pytest_mpi") is None or plugins.is_blocked("pytest_mpi"):
        group.addoption("--with-mpi", action="store_true", help="under mpirun: one run of pytest over all ranks")


def rank_and_size(options: argparse.Namespace) -> tuple[int, int]:
    """Return this process's rank and the number of ranks; 0 and 1 without ``--with-mpi``."""
    return rank_and_size_from_environment() if getattr(options, "with_mpi", False) else (0, 1)


def runs_on_every_rank(item: pytest.Item) -> bool:
    """Return whether a test runs on all ranks, instead of on rank 0 only."""
    return item.get_closest_marker("mpi") is not None and item.get_closest_marker("starpullm_over_ranks") is None


class RankedRun:
    """One rank of a run of pytest over several ranks; registered as a plugin."""

    def __init__(self, config: pytest.Config) -> None:
        from starpullm.processes.ranks import world

        if config.getoption("dist", "no") != "no":
            raise pytest.UsageError("--with-mpi: found -n of pytest-xdist too, expected only one of them")
        try:
            self.comm = world()
        except StarpullmError as error:
            raise pytest.UsageError(f"--with-mpi: {error}") from error
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self._config = config
        self._exchange = _Exchange(self.comm.Dup())
        self._limit: float = config.getoption("--starpullm-timeout")
        if self.rank > 0:
            self._be_silent()

    def refuse_together(self, error: pytest.UsageError | None) -> None:
        """Raise a usage error on all ranks if one of them has found one; every rank has to call it."""
        texts_of_ranks = self._exchange("options", str(error) if error else "")
        found = {rank: text for rank, text in texts_of_ranks.items() if text}
        if not found:
            return
        if self.rank > 0:
            raise pytest.UsageError  # without a text: rank 0 prints it
        texts = [text if len(found) == self.size else f"rank {rank}: {text}" for rank, text in found.items()]
        raise pytest.UsageError(texts[0] if len(found) == self.size else "; ".join(texts))

    # Hooks of pytest

    def pytest_report_header(self) -> str:
        """Show the number of ranks."""
        return f"starpullm: {self.size} ranks; tests marked mpi run on all of them, the others on rank 0"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests that run on every rank last: their fixtures can't coexist with those of the others."""
        items.sort(key=runs_on_every_rank)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuse the run unless all ranks have collected the same tests."""
        from starpullm.processes.ranks import option_differences

        tests = {item.nodeid: str(number) for number, item in enumerate(session.items, 1)}
        collected = self._agree("collection", (tests, session.testsfailed))
        differences = option_differences([tests for tests, _ in collected.values()])[:MAX_DIFFERENCES]
        failed = [rank for rank, (_, errors) in collected.items() if errors]
        if failed and len(failed) < self.size:
            differences.append(f"{_ranks(failed)} had errors, which only that rank's standard output shows")
        if differences:
            if self.rank > 0:
                raise pytest.UsageError
            raise pytest.UsageError(f"the ranks have collected different tests: {'; '.join(differences)}")
        self._note_machines(any(item.get_closest_marker("starpullm_over_ranks") for item in session.items))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test on all ranks or on rank 0, and log the same reports on all ranks."""
        everywhere = runs_on_every_rank(item)
        if nextitem is not None and runs_on_every_rank(nextitem) != everywhere:
            nextitem = None  # so that all fixtures are closed before tests of the other kind begin
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if everywhere:
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        else:
            own = []
            if self.rank == 0:
                own = runtestprotocol(item, log=False, nextitem=nextitem)
            sent = [hook.pytest_report_to_serializable(config=self._config, report=report) for report in own]
            of_first = self._agree(f"reports of {item.nodeid}", sent)[0]
            reports = own or [
                hook.pytest_report_from_serializable(config=self._config, data=report) for report in of_first
            ]
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a phase of a test the same outcome on all ranks: the worst of any rank."""
        report = yield
        if runs_on_every_rank(item):
            own = _Phase(report.outcome, message_of(report), _captured(report))
            place = f"{report.when} of {item.nodeid}"
            try:
                _merge(report, self._agree(place, own, self._limit), self.size)
            except _MissingError as error:
                self._end_all(place, own, error.ranks)
        return report

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """Let rank 0 alone watch the time limit of a test that runs on rank 0."""
        return True if self.rank > 0 and not runs_on_every_rank(item) else None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Wait for the other ranks; a rank at another place of the run learns that this one has ended."""
        with suppress(_ElsewhereError):  # the other ranks get the same error, and end too
            self._exchange("end of the run", int(exitstatus))

    # Implementation

    def _note_machines(self, has_checks_over_ranks: bool) -> None:
        """Let the results say so if the ranks have several machines: the ranks of checks have only that of rank 0."""
        from starpullm.pytest_plugin.run import validation_of

        machines = self._agree("machines", host_name())
        if has_checks_over_ranks:
            validation_of(self._config).note_machines(list(machines.values()))

    def _agree(self, place: str, value: Any, seconds: float | None = None) -> Mapping[int, Any]:
        try:
            return self._exchange(place, value, seconds)
        except _ElsewhereError as error:
            pytest.exit(str(error), pytest.ExitCode.INTERRUPTED)

    def _end_all(self, place: str, own: _Phase, missing: Sequence[int]) -> NoReturn:
        """End the job: nothing else reaches a rank that waits in MPI for a message that is never sent."""
        line = (
            f"rank {self.rank} of {self.size}: {place}: {own.outcome} here; {_ranks(missing)} hadn't ended it "
            f"{self._limit:g} s later (--starpullm-timeout), so the job is ended"
        )
        os.write(2, f"{line}\n{own.message}\n".encode(errors="replace"))
        self.comm.Abort(pytest.ExitCode.TESTS_FAILED)
        os._exit(pytest.ExitCode.TESTS_FAILED)

    def _be_silent(self) -> None:
        """Print nothing, because rank 0 prints for all."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            self._config.pluginmanager.unregister(reporter)
            quiet = pytest.TerminalReporter(self._config, io.StringIO())
            self._config.pluginmanager.register(quiet, "terminalreporter")


def write_nothing(config: pytest.Config, rank: int) -> None:
    """Let this rank write neither cache nor reports, and give it a folder of its own for temporary files.

    pytest and its plugins write no reports in a process that has ``workerinput``, as workers of pytest-xdist have.
    """
    vars(config)["workerinput"] = {"workerid": f"rank{rank}"}
    if config.option.basetemp is not None:
        config.option.basetemp += f"-rank{rank}"


class _Phase(NamedTuple):
    """How a phase of a test ended on one rank."""

    outcome: str
    message: str
    captured: str


class _MissingError(Exception):
    """Some ranks haven't arrived in time."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(_ranks(ranks))
        self.ranks = ranks


class _ElsewhereError(Exception):
    """A rank is at another place of the run, because it was interrupted or a plugin has failed there."""


class _Exchange:
    """Gives every rank's value to all others, without waiting inside MPI, so that signals and time limits work."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._over = False

    def __call__(self, place: str, value: Any, seconds: float | None = None) -> dict[int, Any]:
        """Return the values by rank; after ranks have been at different places, only the own value."""
        rank, size = self._comm.Get_rank(), self._comm.Get_size()
        if self._over:
            return {rank: value}
        others = [other for other in range(size) if other != rank]
        requests = [self._comm.isend((place, value), other) for other in others]
        deadline = None if seconds is None else time.monotonic() + seconds
        received: dict[int, tuple[str, Any]] = {rank: (place, value)}
        while missing := [other for other in others if other not in received]:
            for other in missing:
                message = self._comm.improbe(other)
                if message is not None:
                    received[other] = message.recv()
            if len(received) == size:
                break
            if deadline is not None and time.monotonic() > deadline:
                raise _MissingError(missing)
            time.sleep(_PAUSE_SECONDS)
        for request in requests:
            request.wait()
        places = {other: where for other, (where, _) in sorted(received.items())}
        if len(set(places.values())) > 1:
            self._over = True
            texts = (f"rank {other}: {where}" for other, where in places.items())
            raise _ElsewhereError(f"the ranks aren't at the same place of the run: {'; '.join(texts)}")
        return {other: received[other][1] for other in sorted(received)}


def _merge(report: pytest.TestReport, phases: Mapping[int, _Phase], size: int) -> None:
    """Give a report the worst outcome of all ranks, and name the ranks that had it."""
    outcomes = {phase.outcome for phase in phases.values()}
    worst = max(outcomes, key=_SEVERITY.index)
    if worst == "passed" or outcomes == {"skipped"}:
        return
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, phase in phases.items():
        if phase.outcome == worst:
            groups.setdefault((phase.message, phase.captured if rank > 0 else ""), []).append(rank)
    those = [rank for ranks in groups.values() for rank in ranks]
    lines = [f"{worst} on {_ranks(sorted(those))} of {size}"]
    for (message, captured), ranks in groups.items():
        lines += [f"---- {_ranks(ranks)}", message, *([captured] if captured else [])]
    report.outcome = worst  # type: ignore[assignment]
    if worst == "skipped":
        report.longrepr = (str(report.fspath), report.location[1] or 0, f"Skipped: {' '.join(lines)}")
    else:
        report.longrepr = "\n".join(lines)


def _captured(report: pytest.TestReport) -> str:
    return "\n".join(f"---- {title}\n{text}" for title, text in report.sections)


def _ranks(ranks: Sequence[int]) -> str:
    from starpullm.processes.ranks import rank_list

    return rank_list(ranks)
