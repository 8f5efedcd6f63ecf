"""The programs of ranks in test_failures.py and test_ranks.py: functions that the command line names."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from starpullm.errors import InvalidArgumentError
from starpullm.processes import ranks
from starpullm.processes.progress import report_phase

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

FAILING_RANK = 1
FAILING_STEP = 20
FOREVER = 1000  # seconds or steps, far more than the jobs' time limits allow


def steps(comm: Comm) -> Iterator[int]:
    """Do steps for ever; on the failing rank, yield after each of them."""
    for step in range(1, 1000 * FOREVER):
        report_phase("allreduce")
        comm.barrier()
        assert comm.allreduce(1) == comm.Get_size()
        report_phase("between steps", step)
        if comm.Get_rank() == FAILING_RANK:
            yield step


def complete(comm: Comm) -> None:
    """Write much and end."""
    for line in range(2000):
        print(f"rank {comm.Get_rank()} of {comm.Get_size()}, line {line}")
    print(f"note of rank {comm.Get_rank()}", file=sys.stderr)


def kill_between_steps(comm: Comm) -> None:
    for step in steps(comm):
        if step == FAILING_STEP:
            # That of the next step: the others have finished this one and said so, however slow they are.
            comm.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def kill_while_others_are_slow(comm: Comm) -> None:
    """Keep Python from running anything on the other ranks for four seconds, as a very busy machine would."""
    report_phase("busy", 3)
    comm.barrier()
    if comm.Get_rank() == FAILING_RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of this thread, whose sleep it would end
    ctypes.PyDLL(None).sleep(4)
    comm.recv(source=FAILING_RANK)


def raise_at_the_end(comm: Comm) -> None:
    """Raise when the other ranks are about to leave the guarded block, or wait there."""
    report_phase("at the end", FAILING_STEP)
    comm.barrier()
    if comm.Get_rank() == FAILING_RANK:
        raise ValueError("found a bad number")


def hang(comm: Comm) -> None:
    for step in steps(comm):
        if step == FAILING_STEP:
            report_phase("sleeping")
            time.sleep(FOREVER)


def hang_at_the_end(comm: Comm) -> None:
    """Let one rank sleep at the end of the program."""
    if comm.Get_rank() == FAILING_RANK:
        report_phase("sleeping", 5)
        time.sleep(FOREVER)


def interrupt(comm: Comm) -> None:
    """Interrupt the failing rank while it waits in MPI for a message that nobody sends."""
    report_phase("receiving", 7)
    if comm.Get_rank() == FAILING_RANK:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    comm.recv(source=(comm.Get_rank() + 1) % comm.Get_size())


def refuse_everywhere(comm: Comm) -> None:
    raise InvalidArgumentError("batch_size: found 0, expected at least 1")


def refuse_on_some(comm: Comm) -> None:
    """Raise with two different sentences on three ranks."""
    if comm.Get_rank() == FAILING_RANK:
        raise click.UsageError("No such option: --fast")
    raise InvalidArgumentError("batch_size: found 0, expected at least 1")


def exit_with_1_everywhere(comm: Comm) -> None:
    """Write a result, which mustn't be lost because another rank ends first."""
    if comm.Get_rank() == 0:
        time.sleep(0.3)
        print("result\n" * 5000)
    sys.exit(1)


def exit_with_0(comm: Comm) -> None:
    sys.exit(0)


def different_options(comm: Comm) -> None:
    rank = comm.Get_rank()
    options: dict[str, object] = {"sub_batches": 2 if rank == 0 else 4, "scheduler": "lws"}
    ranks.check_same_options(comm, {"scheduler": "lws"})
    ranks.check_same_options(comm, options)


def orphan(comm: Comm) -> None:
    """Leave a process running in a session of its own, which signals to the group of the rank don't reach."""
    command = [sys.executable, "-c", f"import time; time.sleep({FOREVER})"]
    subprocess.Popen(command, start_new_session=True)


def environment(comm: Comm) -> None:
    print(os.environ.get("ADDED"), os.environ.get("KEPT"))


def shared_files(comm: Comm) -> None:
    """Print the mapped files that aren't libraries: the memory that ranks share."""
    comm.barrier()
    mapped = {
        line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "segment" in line
    }
    print("\n".join(sorted(mapped)))


def exit_status(error: BaseException) -> int:
    return 2 if isinstance(error, InvalidArgumentError) else ranks.default_exit_status(error)


def main(program: Callable[[Comm], None]) -> None:
    report_phase("start")
    comm = ranks.world()
    with ranks.guarded(comm, exit_status):
        program(comm)


if __name__ == "__main__":
    main(globals()[sys.argv[1]])
