"""pytest under mpirun: rank 0 runs all tests, and tells the others which of them to run with it; only rank 0 prints.

The plugin registers a ``RankedRun`` if `rank_and_size` says that the run is one over ranks. A test marked ``mpi`` runs
on all ranks, in pytest's own processes, and has the same outcome on all. Every other test runs on rank 0; if it is
marked ``starpullm_over_ranks``, its checks run in a job of as many ranks.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from starpullm.errors import StarpullmError
from starpullm.processes.rank_wrapper import rank_and_size_from_environment
from starpullm.pytest_plugin.entries import REFUSAL
from starpullm.pytest_plugin.quiet import print_nothing
from starpullm.pytest_plugin.report import message_of

MAX_DIFFERENCES = 3
"""The tests that are named if ranks have collected different ones, each with its place in the order."""

SUITE = "starpullm.suite"

_NEXT = "between tests"
_END = "end of the run"
_PAUSE_SECONDS = 0.02
_STACKS_SECONDS = 10.0  # for the native stacks of a rank
_ABORT_SECONDS = 2.0  # for Python's
_SEVERITY = ("passed", "skipped", "failed")


def launched_ranks(options: argparse.Namespace) -> int:
    """Return the number of processes that were started together; 1 without ``--with-mpi``."""
    return rank_and_size_from_environment()[1] if getattr(options, "with_mpi", False) else 1


def rank_and_size(config: pytest.Config, arguments: Sequence[str] = ()) -> tuple[int, int]:
    """Return this process's rank and the number of ranks of a run that is one over ranks, otherwise 0 and 1.

    It is one with ``--starpullm-over-ranks``. With ``--with-mpi`` it is one if it names the suite or another option of
    the plugin, or if ``starpullm_over_ranks`` is set in the ini file. Other runs under mpirun are left as they are. The
    first call decides; it gets pytest's arguments, because ``--with-mpi`` is no option yet without pytest-mpi.
    """
    known = config.stash.get(_RANK_AND_SIZE, None)
    if known is None:
        options = config.known_args_namespace
        with_mpi = getattr(options, "with_mpi", False) or "--with-mpi" in arguments
        given = any(value is not None for name, value in vars(options).items() if name.startswith("starpullm_"))
        ours = with_mpi and (given or names_suite(config) or config.getini("starpullm_over_ranks"))
        asked = getattr(options, "starpullm_over_ranks", False) or ours
        known = config.stash[_RANK_AND_SIZE] = rank_and_size_from_environment() if asked else (0, 1)
    return known


_RANK_AND_SIZE = pytest.StashKey[tuple[int, int]]()


def names_suite(config: pytest.Config) -> bool:
    """Return whether pytest's arguments, or ``testpaths`` instead, name the suite or a part of it."""
    suite = Path(__file__).parents[1] / "suite"
    arguments = config.known_args_namespace.file_or_dir or config.getini("testpaths")
    modules = (str(argument).partition("::")[0] for argument in arguments)
    return any(
        module == SUITE or module.startswith(f"{SUITE}.") or suite in (Path(module).resolve() / "_").parents
        for module in modules
    )


def runs_on_every_rank(item: pytest.Item) -> bool:
    """Return whether a test runs on all ranks, instead of on rank 0 only."""
    return item.get_closest_marker("mpi") is not None and item.get_closest_marker("starpullm_over_ranks") is None


class ElsewhereError(Exception):
    """A rank is at another place of the run, because it was interrupted or a plugin has failed there."""


class RankedRun:
    """One rank of a run of pytest over several ranks; registered as a plugin."""

    def __init__(self, config: pytest.Config, time_limit: float, notes: list[str]) -> None:
        from starpullm.processes.mpirun import host_name
        from starpullm.processes.ranks import world

        if config.getoption("dist", "no") != "no":
            raise pytest.UsageError("--with-mpi: found -n of pytest-xdist too, expected only one of them")
        try:
            self.comm = world()
        except StarpullmError as error:
            raise pytest.UsageError(f"--with-mpi: {error}") from error
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self._config = config
        self._comm = self.comm.Dup()
        self._limit, self._notes = time_limit, notes
        self._errors: dict[str, str] = {}
        """The modules that couldn't be collected here, and why."""
        self._pids: dict[int, int] = {}
        """The processes of the ranks on this machine, by rank."""
        self._are_apart = False
        self._has_started = False
        self._tests_are_over = False
        if self.rank > 0:
            print_nothing(config)
        seed = getattr(config.option, "randomly_seed", None)  # pytest-randomly has chosen it when it was configured
        own = (seed, host_name(), os.getpid())
        begun = self._share("start", own, _TestPhase("ended"))
        self._hosts = [host for _, host, _ in begun.values()]
        self._pids = {rank: pid for rank, (_, host, pid) in begun.items() if host == own[1]}
        if begun[0][0] is not None:
            config.option.randomly_seed = begun[0][0]

    def pytest_report_header(self) -> str:
        """Show the number of ranks."""
        return f"starpullm: {self.size} ranks; tests marked mpi run on all of them, the others on rank 0"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Remember that `pytest_sessionfinish` will be called, whatever happens."""
        self._has_started = True

    @pytest.hookimpl(trylast=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """Show an error inside pytest or a plugin, and end the job if the other ranks would wait for this one."""
        if self.rank > 0:
            _write(f"rank {self.rank} of {self.size}: INTERNALERROR> {excrepr}")
        if not self._has_started:
            self._abort(pytest.ExitCode.INTERNAL_ERROR)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests that run on every rank last: their fixtures can't coexist with those of the others."""
        items.sort(key=runs_on_every_rank)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a module can't be collected: only rank 0 prints."""
        if report.failed:
            self._errors[report.nodeid] = report.longreprtext

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Refuse the run on all ranks unless all of them have collected the same tests and can satisfy the options."""
        from starpullm.processes.ranks import option_differences

        tests = {item.nodeid: str(number) for number, item in enumerate(session.items, 1)}
        own = (tests, self._errors, self._config.stash.get(REFUSAL, ""))
        collected = self._agree("collection", own, _TestPhase(f"{len(tests)} tests"))
        self._refuse_together({rank: text for rank, (_, _, text) in collected.items() if text})
        differences = option_differences([tests for tests, _, _ in collected.values()])[:MAX_DIFFERENCES]
        differences += _errors_of_some({rank: errors for rank, (_, errors, _) in collected.items()})
        if differences:
            if self.rank > 0:
                raise pytest.UsageError
            raise pytest.UsageError(f"the ranks have collected different tests: {'; '.join(differences)}")
        if any(item.get_closest_marker("starpullm_over_ranks") for item in session.items):
            self._note_machines()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests; rank 0 ends its loop last, when the others have written coverage."""
        option = session.config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None  # pytest's own loop says what there is to say
        if self.rank == 0:
            self._lead(session)
        else:
            while (number := self._agree(_NEXT, None).get(0)) is not None:
                self._run(session, number)
        if session.shouldfail and self.rank == 0:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a phase of a test the same outcome on all ranks, the worst of any rank, and its exception.

        It is the innermost wrapper: other plugins, which expect failures or repeat them, judge what all ranks have.
        """
        report = yield
        if runs_on_every_rank(item):
            captured = "\n".join(f"---- {title}\n{text}" for title, text in report.sections)
            own = _TestPhase(report.outcome, message_of(report), captured, _pickled(call))
            place = f"{report.when} of {item.nodeid}"
            try:
                _merge(report, call, self._share(place, own, own), self.rank)
            except ElsewhereError as error:  # not raised through the wrappers of other plugins, some of which object
                item.session.shouldstop = str(error)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Wait for the other ranks; a rank at another place of the run learns that this one has ended."""
        if not self._tests_are_over:
            with suppress(ElsewhereError):  # the other ranks get the same error, and end too
                self._share(_END, None)
        try:
            return (yield)
        finally:
            with suppress(ElsewhereError):
                self._share("end of the session", None)

    def _share(self, place: str, value: Any, phase: _TestPhase | None = None) -> dict[int, Any]:
        """Return the values of all ranks, in their order; after ranks have been at different places, only the own one.

        This waits outside of MPI, so that signals work. With a phase, which has just ended here, the job is ended
        unless the other ranks arrive within the time limit.
        """
        if self._are_apart:
            return {self.rank: value}
        others = [other for other in range(self.size) if other != self.rank]
        requests = [self._comm.isend((place, value), other) for other in others]
        deadline = math.inf if phase is None else time.monotonic() + self._limit
        received: dict[int, tuple[str, Any]] = {self.rank: (place, value)}
        while missing := [other for other in others if other not in received]:
            for other in missing:
                message = self._comm.improbe(other)
                if message is not None:
                    received[other] = message.recv()
            if len(received) == self.size:
                break
            if phase is not None and time.monotonic() > deadline:
                self._end_all(place, phase, missing)
            time.sleep(_PAUSE_SECONDS)
        for request in requests:
            request.wait()
        by_rank = dict(sorted(received.items()))
        if len({where for where, _ in by_rank.values()}) > 1:
            self._are_apart = True
            texts = (f"rank {other}: {where}" for other, (where, _) in by_rank.items())
            raise ElsewhereError(f"the ranks aren't at the same place of the run: {'; '.join(texts)}")
        return {other: received_value for other, (_, received_value) in by_rank.items()}

    def _agree(self, place: str, value: Any, phase: _TestPhase | None = None) -> Mapping[int, Any]:
        """Call `_share`, and end this rank's run if a rank is elsewhere."""
        try:
            return self._share(place, value, phase)
        except ElsewhereError as error:
            pytest.exit(str(error), pytest.ExitCode.INTERRUPTED)

    def _refuse_together(self, texts_of_ranks: Mapping[int, str]) -> None:
        """Raise a usage error on all ranks if one of them has found one."""
        if not texts_of_ranks:
            return
        if self.rank > 0:
            raise pytest.UsageError  # without a text: rank 0 prints it
        texts = list(texts_of_ranks.values())
        if len(texts) < self.size:
            texts = [f"rank {rank}: {text}" for rank, text in texts_of_ranks.items()]
        raise pytest.UsageError("; ".join(dict.fromkeys(texts)))

    def _lead(self, session: pytest.Session) -> None:
        """Run all tests, each together with the other ranks if it runs on every rank."""
        for number, item in enumerate(session.items):
            if runs_on_every_rank(item):
                self._agree(_NEXT, number)
            self._run(session, number)
            if session.shouldfail or session.shouldstop:
                break
        self._tests_are_over = True
        self._agree(_NEXT, None)
        self._agree(_END, None)

    def _run(self, session: pytest.Session, number: int) -> None:
        item, *following = session.items[number : number + 2]
        # Without a next one all fixtures are closed, before tests of the other kind begin.
        nextitem = next((other for other in following if runs_on_every_rank(other) == runs_on_every_rank(item)), None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)

    def _note_machines(self) -> None:
        """Let the results say so if the ranks have several machines: the ranks of checks have only that of rank 0."""
        first = self._hosts[0]
        others = sorted(set(self._hosts) - {first})
        if others:
            self._notes.append(
                f"checks over ranks: all ranks were on {first}; no check has used {', '.join(others)} of this run's "
                "machines, expected `mpirun starpullm parity` for them"
            )

    def _end_all(self, place: str, own: _TestPhase, missing: Sequence[int]) -> NoReturn:
        """End the job: nothing else reaches a rank that waits in MPI for a message that is never sent."""
        line = (
            f"rank {self.rank} of {self.size}: {place}: {own.outcome} here; {_ranks_text(missing)} hadn't ended it "
            f"{self._limit:g} s later (--starpullm-time-limit), so the job is ended"
        )
        _write(f"{line}\n{own.message}" if own.message else line)
        if any(rank not in missing for rank in range(self.rank)):
            time.sleep(_STACKS_SECONDS)  # for the first of the ranks that aren't missing, which then ends the job
        else:
            for rank in missing:
                if rank in self._pids:
                    _write_stacks(rank, self._pids[rank])
        self._abort(pytest.ExitCode.TESTS_FAILED)

    def _abort(self, status: pytest.ExitCode) -> NoReturn:
        self.comm.Abort(status)
        os._exit(status)


def _write(text: str) -> None:
    os.write(2, f"{text}\n".encode(errors="replace"))


def _write_stacks(rank: int, pid: int) -> None:
    """Write the native stacks of a rank that hangs; end it, upon which pytest's faulthandler there writes Python's."""
    from starpullm.processes.reaper import process_end
    from starpullm.processes.stacks import native_stacks

    _write(f"---- native stacks of rank {rank}\n{native_stacks(pid, _STACKS_SECONDS)}")
    _write(f"---- stacks of Python of rank {rank}")
    with suppress(OSError):
        _, most = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, most))  # a core file would stay
        os.kill(pid, signal.SIGABRT)
        select.select([process_end(pid)], [], [], _ABORT_SECONDS)


def _ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as words: ``rank 1``, ``ranks 1, 2``."""
    from starpullm.processes.ranks import rank_list

    return rank_list(ranks)


def _errors_of_some(errors_of_ranks: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Return what went wrong with modules that some ranks could collect and others couldn't."""
    found: dict[tuple[str, str], list[int]] = {}
    for rank, errors in errors_of_ranks.items():
        for nodeid, text in errors.items():
            if not all(nodeid in other for other in errors_of_ranks.values()):
                found.setdefault((nodeid, text), []).append(rank)
    return [f"{_ranks_text(ranks)} had an error in {nodeid}:\n{text}" for (nodeid, text), ranks in found.items()]


class _TestPhase(NamedTuple):
    """How a phase of a test ended on one rank."""

    outcome: str
    message: str = ""
    captured: str = ""
    error: bytes | None = None
    """The exception if there was one and it can be sent."""


def _merge(report: pytest.TestReport, call: pytest.CallInfo[None], phases: Mapping[int, _TestPhase], own: int) -> None:
    """Give a report the worst outcome of all ranks and an exception of a rank that had it; name those ranks."""
    outcomes = {phase.outcome for phase in phases.values()}
    worst = max(outcomes, key=_SEVERITY.index)
    if worst == "passed" or outcomes == {"skipped"}:
        return
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, phase in phases.items():
        if phase.outcome == worst:
            groups.setdefault((phase.message, phase.captured if rank > 0 else ""), []).append(rank)
    those = sorted(rank for ranks in groups.values() for rank in ranks)
    lines = [f"{worst} on {_ranks_text(those)} of {len(phases)}"]
    for (message, captured), ranks in groups.items():
        lines += [f"---- {_ranks_text(ranks)}", message, *([captured] if captured else [])]
    report.outcome = worst  # type: ignore[assignment]
    if worst == "skipped":
        report.longrepr = (str(report.fspath), report.location[1] or 0, f"Skipped: {' '.join(lines)}")
    else:
        report.longrepr = "\n".join(lines)
    if own != those[0] or phases[own].error is None:
        call.excinfo = _excinfo(phases[those[0]])


def _pickled(call: pytest.CallInfo[None]) -> bytes | None:
    """Return the exception of a phase if another process can make the same one of it."""
    if call.excinfo is None:
        return None
    with suppress(Exception):
        text = pickle.dumps(call.excinfo.value)
        pickle.loads(text)
        return text
    return None


def _excinfo(phase: _TestPhase) -> pytest.ExceptionInfo[BaseException]:
    """Return the exception of another rank's phase, as if it had been raised here."""
    error: BaseException = RuntimeError(phase.message)
    if phase.error is not None:
        with suppress(Exception):  # this rank may lack what the other one has imported
            error = pickle.loads(phase.error)
    try:
        raise error
    except BaseException:
        return pytest.ExceptionInfo.from_current()
