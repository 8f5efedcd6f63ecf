"""What a process does that is one rank of an MPI job: start MPI, compare options with other ranks, and end with them.

``pytest_plugin/ranked_run.py`` is about pytest on several ranks. mpi4py is imported only where there are several.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    MissingDependencyError,
    StarpullmError,
    StateError,
)
from starpullm.processes import Comm, progress
from starpullm.processes.interrupts import SignalWatch, say
from starpullm.processes.mpirun import host_name
from starpullm.processes.rank_wrapper import RANK_AND_SIZE

AGREEMENT_SECONDS = 1.0
"""How long a rank that fails waits for the other ranks to fail too, before it ends them by ``MPI_Abort``."""


def world() -> Comm:
    """Initialise MPI if that hasn't been done, and return MPI_COMM_WORLD."""
    # With more ranks than cores Open MPI's threads yield while they wait, but StarPU's workers do not yield while they
    # look for tasks, so each message takes a time slice. MPI reads the variable when it is initialised.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "0")
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingDependencyError(
            f"mpi4py: can't be imported ({error}), expected it for several ranks: pip install 'starpullm[mpi]'"
        ) from error
    except RuntimeError as error:  # mpi4py's wheels raise it if there is no libmpi
        raise MissingDependencyError(
            f"mpi4py: found no MPI library ({error}), expected Open MPI or MPICH: apt-get install libopenmpi-dev"
        ) from error
    check_launcher()
    return MPI.COMM_WORLD


def check_launcher() -> None:
    """Refuse a process whose MPI, if it has been initialised, isn't its launcher's: it would be alone as each rank."""
    mpi = sys.modules.get("mpi4py.MPI")
    sizes = [size for rank, size in RANK_AND_SIZE if rank in os.environ and size in os.environ]
    if not sizes or mpi is None or not mpi.Is_initialized():
        return
    launched, found = os.environ[sizes[0]], mpi.COMM_WORLD.Get_size()
    if launched != str(found):
        raise InvalidArgumentError(
            f"ranks: {sizes[0]} is {launched}, but MPI_COMM_WORLD has {found}, expected the launcher of the MPI "
            f"library that mpi4py uses: {mpi.Get_library_version().partition(',')[0]}"
        )


def default_exit_status(error: BaseException) -> int:
    """Return the exit status that Python uses for an exception, or that it has as ``exit_code``, as click's do."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(status := getattr(error, "exit_code", None), int):
        return status
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


@contextmanager
def guarded(comm: Comm | None, exit_status: Callable[[BaseException], int] = default_exit_status) -> Iterator[None]:
    """Make all ranks (None: one process) end together, so that no rank waits for ever for one that has failed.

    A rank whose block raises writes the exception and its own last report to standard error. If all ranks raise within
    a second, for example because of bad input, each distinct sentence is written once and each rank exits with its own
    status; at once, if the ranks haven't made the same calls by then (see ``common_call``), because trainers and
    runtimes couldn't be closed. Otherwise the rank ends the others by ``MPI_Abort`` with its status, also those that
    have left the block. A rank that leaves the block without an exception waits for the others.

    SIGTERM, which mpirun sends to the surviving ranks when a rank has died, ends the process at once, after a line with
    its last report. SIGINT does the same if the block hasn't been left within two seconds. Both work during a native
    call of the main thread.

    `exit_status` turns an exception into an exit status; 0 means that the exception is not a failure.

    Every rank has to enter and leave the block, in the main thread. Blocks may be nested. The blocks of runtimes and
    trainers inside it (see `CommonBlocks`) end with the same statuses.
    """
    if comm is None:
        yield
        return
    with SignalWatch(comm.Get_rank()) as watch:
        own = comm.Dup()  # other ranks may be in the middle of an operation on `comm`
        outer, _Guard.exit_status = _Guard.exit_status, exit_status
        try:
            yield
            _leave_regularly(own)
        except BaseException as error:
            status = exit_status(error)
            if not status:
                _leave_regularly(own)
                raise
            _leave_failing(own, watch, _reason(error, status), is_last=True)
            if isinstance(error, SystemExit):
                raise
            raise SystemExit(status) from error
        finally:
            _Guard.exit_status = outer
            own.Free()  # all ranks get here


class CommonBlocks:
    """The ``with`` blocks that all ranks of a communicator enter and leave together: of a runtime and of its trainers.

    Leaving one closes what it has opened, which waits for the other ranks.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm.Dup()  # other ranks may be in the middle of an operation on `comm`
        self._entered = 0

    def enter(self) -> None:
        """Count a block that is entered."""
        self._entered += 1

    def leave(self, error: BaseException | None) -> None:
        """Wait for the other ranks at the end of a block; return if all ranks can close what it has opened.

        A rank whose block has raised waits a second. If the other ranks have left theirs by then, with or without an
        exception, and have made the same calls, each closes, and the exception goes on. Otherwise the rank writes the
        exception and its own last report to standard error and ends all ranks by ``MPI_Abort``. Outside `guarded` what
        it writes has the traceback.
        """
        entered, self._entered = self._entered, self._entered - 1
        exit_status = _Guard.exit_status or default_exit_status
        status = 0 if error is None or isinstance(error, GeneratorExit) else exit_status(error)
        if error is None or not status:
            _leave_regularly(self._comm, entered)
        elif not hasattr(error, _LEFT_TOGETHER):
            reason = _reason(error, status, traced=_Guard.exit_status is None and isinstance(error, Exception))
            with SignalWatch(self._comm.Get_rank()) as watch:
                all_fail = _leave_failing(self._comm, watch, reason, entered)
            if all_fail:  # the outer blocks needn't ask again; closing takes some ranks longer than others
                setattr(error, _LEFT_TOGETHER, True)

    def free(self) -> None:
        """Free the communicator; all ranks have to call this."""
        self._comm.Free()


@contextmanager
def common_call(comm: Comm | None) -> Iterator[None]:
    """Count a call that all ranks of a communicator have to make (None: one rank), for example of a trainer's method.

    What the call submits on one rank waits for the other ranks, and they for it. So a rank on which a call has failed
    half way, or that has made fewer calls than the others, can't close what it has open.
    """
    if comm is None:
        yield
        return
    try:
        yield
    except (InvalidArgumentError, StateError):  # nothing has been submitted
        raise
    except (FileError, FormatError):  # all has been submitted
        _Calls.done += 1
        raise
    except BaseException:
        _Calls.are_whole = False
        raise
    _Calls.done += 1


@contextmanager
def failing_together(comm: Comm | None) -> Iterator[None]:
    """Make a `StarpullmError` on some ranks one on all of them, whose sentence names the first of these ranks."""
    if comm is None:
        yield
        return
    own: StarpullmError | None = None
    try:
        yield
    except StarpullmError as error:
        own = error
    failures: list[tuple[StarpullmError | None, str]] = comm.allgather((own, host_name()))
    if own is not None and all(failure is not None for failure, _ in failures):
        raise own
    for rank, (failure, host) in enumerate(failures):
        if failure is not None:
            failure.args = (f"rank {rank} on {host}: {failure}", *failure.args[1:])
            raise failure from own


def check_same_options(comm: Comm, options: Mapping[str, object]) -> None:
    """Raise on every rank if options differ between ranks by their ``repr``; every rank has to call this."""
    differences = option_differences(comm.allgather({name: repr(value) for name, value in options.items()}))
    if differences:
        raise InvalidArgumentError(
            f"different options on ranks: {'; '.join(differences)}, expected the same everywhere"
        )


def option_differences(options: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a text for each option that differs, for example ``sub_batches is 2 on rank 0 and 4 on rank 1``."""
    differences = []
    for name in dict.fromkeys(name for of_rank in options for name in of_rank):
        ranks: dict[str, list[int]] = {}
        for rank, of_rank in enumerate(options):
            ranks.setdefault(of_rank.get(name, "missing"), []).append(rank)
        if len(ranks) > 1:
            *values, last = (f"{value} on {rank_list(where)}" for value, where in ranks.items())
            differences.append(f"{name} is {', '.join(values)} and {last}")
    return differences


def rank_list(ranks: Sequence[int]) -> str:
    """Return sorted ranks in words: ``rank 3``, ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def meet(comm: Comm, seconds: float | None = None) -> bool:
    """Wait for all ranks, mostly asleep, so that signal handlers can run; False if the time is over first."""
    # Once all ranks have met, one of them may end the job, and with it any output that is still in a buffer.
    sys.stdout.flush()
    sys.stderr.flush()
    deadline = None if seconds is None else time.monotonic() + seconds
    request = comm.Ibarrier()
    pause = 0.0005
    while not request.Test():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True


@dataclass(frozen=True)
class _Reason:
    """Why a rank fails: its exit status, a sentence unless it was written before, and the traceback of a defect."""

    status: int
    sentence: str
    trace: str = ""

    def say(self, who: str) -> None:
        say(f"{self.trace}{who}: {self.sentence or f'exit status {self.status}'} ({progress.where()})")


def _reason(error: BaseException, status: int, *, traced: bool = False) -> _Reason:
    """Return the reason of an exception; with a traceback if it is a defect, or `traced`."""
    if isinstance(error, SystemExit):
        return _Reason(status, "" if error.code is None or isinstance(error.code, int) else str(error.code))
    if isinstance(error, KeyboardInterrupt):
        return _Reason(status, "interrupted")
    if hasattr(error, "exit_code"):
        return _Reason(status, error.format_message() if hasattr(error, "format_message") else "")
    if isinstance(error, StarpullmError) and not traced:
        return _Reason(status, str(error))
    return _Reason(status, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


class _Guard:
    """The innermost `guarded` block of this process."""

    exit_status: Callable[[BaseException], int] | None = None


class _Calls:
    """The calls of this process that all ranks have to make."""

    done = 0
    are_whole = True
    """Whether none of them has failed half way."""


_LEFT_TOGETHER = "_starpullm_left_together"
"""Attribute of an exception with which all ranks have left a block, and can close what they have open."""


@dataclass(frozen=True)
class _Leaving:
    """What a rank tells the others when it leaves a block."""

    sentence: str | None
    """Why it fails, "" if that was written before; None: it doesn't fail."""
    entered: int
    """The number of blocks that it was in."""
    calls: int
    calls_are_whole: bool

    @classmethod
    def now(cls, sentence: str | None, entered: int) -> _Leaving:
        return cls(sentence, entered, _Calls.done, _Calls.are_whole)


def _all_can_close(ranks: Sequence[_Leaving]) -> bool:
    """Return whether all ranks have made the same calls, so that each can close what it has open."""
    return all(rank.calls_are_whole for rank in ranks) and len({(rank.entered, rank.calls) for rank in ranks}) == 1


def _leave_regularly(comm: Comm, entered: int = 0) -> None:
    progress.report_phase("waiting for the other ranks to end")
    meet(comm)
    comm.allgather(_Leaving.now(None, entered))


def _leave_failing(comm: Comm, watch: SignalWatch, reason: _Reason, entered: int = 0, *, is_last: bool = False) -> bool:
    """Return whether all ranks fail, if they leave the block in time and can close what they have open; or end them.

    From the last block all ranks have to fail. What is raised out of another one is said further out.
    """
    watch.leaving.set()
    watch.unsaid = reason.say
    ranks = _tell(comm, reason, entered)
    all_fail = ranks is not None and all(rank.sentence is not None for rank in ranks)
    if ranks is None or not (all_fail or (_all_can_close(ranks) and not is_last)):
        watch.unsaid = None
        reason.say(f"rank {comm.Get_rank()}")
        comm.Abort(reason.status)
        os._exit(reason.status)  # in case MPI_Abort returns
    if is_last or not _all_can_close(ranks):
        watch.unsaid = None
        having = [rank for rank, other in enumerate(ranks) if other.sentence == reason.sentence]
        if reason.sentence and having[0] == comm.Get_rank():  # each distinct sentence once
            reason.say(rank_list(having))
    if not _all_can_close(ranks):
        meet(comm)  # when one has ended, mpirun ends the others, which have to write their reasons before
        os._exit(reason.status)
    return all_fail


def _tell(comm: Comm, reason: _Reason, entered: int) -> Sequence[_Leaving] | None:
    """Wait for the other ranks to leave too, and exchange the reasons; None if they don't within the time."""
    with suppress(OSError):  # a missing directory for reports must not hide the reason
        progress.report_failure(reason.status, reason.sentence)
    try:
        if not meet(comm, AGREEMENT_SECONDS):
            return None
        ranks: list[_Leaving] = comm.allgather(_Leaving.now(reason.sentence, entered))
    except Exception:  # the failure may be MPI's own
        return None
    return ranks
