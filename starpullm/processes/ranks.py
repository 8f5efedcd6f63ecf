"""For a process that is one rank of an MPI job: its world, the same options everywhere, and one end for all ranks.

The command line calls it when it is run under mpirun; mpi4py is needed from `world` on.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import click

from starpullm.errors import InvalidArgumentError, MissingDependencyError, StarpullmError
from starpullm.processes import progress
from starpullm.processes.keeper import rank_and_size_from_environment

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = [
    "check_same_options",
    "default_exit_status",
    "guarded",
    "meet",
    "option_differences",
    "rank_and_size_from_environment",
    "rank_list",
    "world",
]

AGREEMENT_SECONDS = 1.0
"""How long a rank that gives up waits for the others to do so too, before it ends them."""

INTERRUPT_SECONDS = 2.0
"""How long an interrupted rank may stay in a native call."""


def world() -> Comm:
    """Initialise MPI if that hasn't been done, and return MPI_COMM_WORLD.

    Raises
    ------
    MissingDependencyError
        If mpi4py isn't installed, or finds no MPI.
    """
    # With more ranks than cores Open MPI's threads yield while they wait, and workers that look for tasks don't:
    # messages then take a time slice each. Has to be said before MPI is initialised.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "0")
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MissingDependencyError(
            f"mpi4py: can't be imported ({error}), expected it for several ranks: pip install 'starpullm[mpi]'"
        ) from error
    except RuntimeError as error:  # how its wheels say that there is no libmpi
        raise MissingDependencyError(
            f"mpi4py: found no MPI library ({error}), expected Open MPI or MPICH: apt-get install libopenmpi-dev"
        ) from error
    return MPI.COMM_WORLD


def default_exit_status(error: BaseException) -> int:
    """Return the exit status that an exception means, as Python and click have it."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, click.ClickException | click.exceptions.Exit):
        return error.exit_code
    return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


@contextmanager
def guarded(comm: Comm, exit_status: Callable[[BaseException], int] = default_exit_status) -> Iterator[None]:
    """Let all ranks end together: none waits for ever for one that has failed.

    A rank that raises says on standard error what, and what it reported last. If all ranks leave within a second, as
    for bad input, the same sentence is said once and each exits with its own status; else this one ends the others by
    ``MPI_Abort`` with its status. A rank that leaves regularly waits for the others.

    SIGTERM, which mpirun sends to the survivors when a rank has died, ends the process at once with a line that says
    where it was; SIGINT does if the rank hasn't left within two seconds. Both also in a native call of the main thread.

    Every rank enters and leaves it, in the main thread, and leaves it before it closes what waits for other ranks when
    it is closed: a trainer, a runtime. It may be nested.

    Parameters
    ----------
    comm
        All ranks of the job.
    exit_status
        From an exception to an exit status; 0 means that it is no failure.

    Raises
    ------
    SystemExit
        With that exit status, in place of an exception that all ranks agreed to leave with.
    """
    with _SignalWatch(comm.Get_rank()) as watch:
        own = comm.Dup()  # on `comm` the others may be in the middle of something
        try:
            yield
            _leave_regularly(own)
        except BaseException as error:
            watch.leaving.set()
            status = exit_status(error)
            if not status:
                _leave_regularly(own)
                raise
            reason = _reason(error, status)
            if not _left_together(own, watch, reason):
                _abort(comm, watch, reason)
            if isinstance(error, SystemExit):
                raise
            raise SystemExit(status) from error
        finally:
            own.Free()  # here all ranks have met


def check_same_options(comm: Comm, options: Mapping[str, object]) -> None:
    """Refuse options that aren't the same on all ranks; every rank calls it, and every rank is refused.

    Parameters
    ----------
    comm
        All ranks that have to agree.
    options
        Name to value; values are the same if their ``repr`` is.

    Raises
    ------
    InvalidArgumentError
        Naming each option that differs, its values and their ranks.
    """
    differences = option_differences(comm.allgather({name: repr(value) for name, value in options.items()}))
    if differences:
        raise InvalidArgumentError(
            f"different options on ranks: {'; '.join(differences)}, expected the same everywhere"
        )


def option_differences(options: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a text for each option that differs, for example ``sub_batches is 2 on rank 0 and 4 on rank 1``.

    Parameters
    ----------
    options
        By rank: name to text of the value.
    """
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
    """Wait for all ranks, asleep, with handlers of signals running; False if the time is over first."""
    # Whoever arrives first may end the others' output, were it not written yet.
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


# ---- How it works ----


@dataclass(frozen=True)
class _Reason:
    """Why a rank gives up: its exit status, a sentence unless that has been said already, and the trace of a defect."""

    status: int
    sentence: str
    trace: str = ""

    def say(self, who: str) -> None:
        _say(f"{self.trace}{who}: {self.sentence or f'exit status {self.status}'} ({progress.where()})")


def _reason(error: BaseException, status: int) -> _Reason:
    if isinstance(error, SystemExit | click.exceptions.Exit):
        code = error.code if isinstance(error, SystemExit) else None
        return _Reason(status, "" if code is None or isinstance(code, int) else str(code))
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _Reason(status, "interrupted")
    if isinstance(error, click.ClickException):
        return _Reason(status, error.format_message())
    if isinstance(error, StarpullmError):
        return _Reason(status, str(error))
    return _Reason(status, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def _left_together(comm: Comm, watch: _SignalWatch, reason: _Reason) -> bool:
    """Say why this rank gives up, once for all ranks that say the same, if all of them leave within the time."""
    watch.unsaid = reason
    with suppress(StarpullmError):  # that there is no place for reports any more isn't what the user has to know
        progress.report_failure(reason.status, reason.sentence)
    try:
        if not meet(comm, AGREEMENT_SECONDS):
            return False
        sentences = comm.allgather(reason.sentence)
    except Exception:  # it may be MPI that has failed
        return False
    watch.unsaid = None
    if reason.sentence and sentences.index(reason.sentence) == comm.Get_rank():
        reason.say(rank_list([rank for rank, sentence in enumerate(sentences) if sentence == reason.sentence]))
    return True


def _leave_regularly(comm: Comm) -> None:
    progress.report_phase("waiting for the other ranks to end")
    meet(comm)
    comm.allgather("")


def _abort(comm: Comm, watch: _SignalWatch, reason: _Reason) -> NoReturn:
    watch.unsaid = None
    reason.say(f"rank {comm.Get_rank()}")
    comm.Abort(reason.status)
    os._exit(reason.status)  # not reached where MPI_Abort does what it says


def _say(line: str) -> None:
    """Write a line in one piece, past buffers whose lock the main thread may hold."""
    os.write(2, f"{line}\n".encode(errors="replace"))


class _SignalWatch:
    """Ends the process at a signal, from a thread: handlers written in Python wait for native calls to return."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.unsaid: _Reason | None = None
        """What the rank is going to say of its failure."""
        self.leaving = threading.Event()
        """Set when the main thread has got the exception that a signal raised, or any other."""

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._outer_file = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # Python's own part of a signal, and with it the wake-up, needs a handler to be there.
        self._outer_handler = signal.signal(signal.SIGTERM, lambda *_: None)
        self._thread = threading.Thread(target=self._watch, name="starpullm signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leaving.set()
        signal.set_wakeup_fd(self._outer_file)
        if self._outer_handler is not None:  # None: not Python's, so not to be put back from here
            signal.signal(signal.SIGTERM, self._outer_handler)
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        while True:
            select.select([self._reader], [], [])
            for number in os.read(self._reader, 64):
                if number == 0:
                    return
                if number == signal.SIGTERM or (number == signal.SIGINT and not self.leaving.wait(INTERRUPT_SECONDS)):
                    self._end(number)

    def _end(self, number: int) -> NoReturn:
        if self.unsaid is not None:
            self.unsaid.say(f"rank {self.rank}")
        _say(f"rank {self.rank}: ended by {signal.Signals(number).name} ({progress.where()})")
        os._exit(128 + number)
