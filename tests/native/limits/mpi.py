"""What the library makes of an MPI that is not as StarPU's transfers need it: too low a level of threads, or ended.

MPI is started in forks, because a process can start it only once. It is the one that the library has loaded.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial

from starpullm.binding import prototypes
from starpullm.errors import StateError
from starpullm.processes.mpirun import outside_of_jobs

from .processes import in_fork, loaded_library
from .starts import start_as_is
from .statements import Statements, ending_of, text_of

_LEVELS = ("MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE")
"""By their numbers in Open MPI and in MPICH."""


def check_levels(statements: Statements) -> None:
    """Start a runtime over MPI of each level, and again after the end of MPI.

    This process must have a single thread, and must not have opened the library under test.
    """
    # A process that mpirun has started would pass for the same rank as its forks.
    kept = outside_of_jobs(os.environ, on_this_machine=False)
    dropped = {name: None for name in os.environ if name not in kept}
    for required in range(len(_LEVELS)):
        provided, running, ended = in_fork(partial(_start_and_end_mpi, required), **dropped)
        if provided < len(_LEVELS) - 1:
            sentence = (
                f"MPI: found it initialized with {_LEVELS[provided]}, expected MPI_THREAD_MULTIPLE: a thread of "
                "StarPU's calls it at any time"
            )
            statements.equal(f"a runtime over MPI of level {provided}", text_of(StateError, sentence), running)
        sentence = "MPI is finalized, expected to be running"
        statements.equal(f"a runtime after MPI of level {provided}", text_of(StateError, sentence), ended)


def _start_and_end_mpi(required: int) -> tuple[int, str, str]:
    """Return the level that MPI provides, and how starts of a runtime end that come before and after the end of MPI."""
    prototypes.call("abi_version")  # opens the library
    mpi = loaded_library("libmpi.so", "libmpich.so")
    level = ctypes.c_int()
    mpi.MPI_Init_thread(None, None, required, ctypes.byref(level))
    # Some communicator: MPI is looked at first.
    start = partial(start_as_is, communicator=prototypes.communicator(0))
    running = ending_of(start) if level.value < len(_LEVELS) - 1 else ""
    mpi.MPI_Finalize()
    return level.value, running, ending_of(start)
