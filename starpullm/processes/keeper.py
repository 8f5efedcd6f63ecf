"""Stays beside one process of a job: output goes to files, and how it ended is noted before anybody else hears of it.

``job.py`` has it started, by path, for every rank. It imports nothing of the package: it has to be there at once.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["rank_and_size_from_environment"]

# What says which rank a process is: Open MPI's mpirun, MPICH's mpiexec and its kin, Slurm's srun.
_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

EXIT_CANNOT_START = 127  # as shells have it
EXIT_LAUNCHER_GONE = 1  # which nobody sees but mpirun


def rank_and_size_from_environment(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return which rank of how many this process is; 0 of 1 if nothing started it as a rank.

    Parameters
    ----------
    environment
        By default the process's own.
    """
    environment = os.environ if environment is None else environment
    for rank, size in _RANK_AND_SIZE:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1


def main(directory: Path, launcher: int, places: list[str], command: list[str]) -> int:
    """Run a command to its end and return its exit status, 128 and the signal's number if a signal ended it.

    Leaves in `directory`, R being the rank: ``R.stdout`` and ``R.stderr``; ``R.pid``, the number of the process; at its
    end ``R.ending``: exit status, negative for a signal, and CLOCK_MONOTONIC in nanoseconds.

    Parameters
    ----------
    directory
        The job's.
    launcher
        Number of the process that wants to know. Once it is gone, nobody ends the command any more but this.
    places
        The job's directories, which nobody removes any more then.
    command
        What to run.
    """
    rank, _ = rank_and_size_from_environment()
    # mpirun signals whole process groups. A handler that does nothing, unlike SIG_IGN, isn't inherited by the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    # A core file would be left behind.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with (directory / f"{rank}.stdout").open("wb") as stdout, (directory / f"{rank}.stderr").open("wb") as stderr:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        except OSError as error:
            stderr.write(f"{command[0]}: can't be started: {error.strerror}\n".encode())
            status = EXIT_CANNOT_START
        else:
            _write(directory / f"{rank}.pid", str(process.pid))
            _end_with(launcher, process, places)
            status = process.wait()
    _write(directory / f"{rank}.ending", f"{status} {time.monotonic_ns()}")
    return status if status >= 0 else 128 - status


def _end_with(launcher: int, process: subprocess.Popen[bytes], places: list[str]) -> None:
    """Wait until the process has ended, or end it because the launcher has, and this one with it."""
    try:
        files = {os.pidfd_open(launcher): launcher, os.pidfd_open(process.pid): process.pid}
    except ProcessLookupError:
        files = {}  # one of them has ended already
    except OSError:
        return  # Linux before 5.3: without this guard then
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    ended = {files[file] for file, _ in poll.poll()} if files else set()
    if process.poll() is None and process.pid not in ended:
        process.kill()
        process.wait()
        for place in places:
            shutil.rmtree(place, ignore_errors=True)  # the keepers of other ranks do the same
        # mpirun gives each rank a group, and so does job.py; in anybody else's this process isn't first.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(EXIT_LAUNCHER_GONE)
    for file in files:
        os.close(file)


def _write(path: Path, text: str) -> None:
    """Write a file that is there with all of its content or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, "ascii")
    unfinished.rename(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(os.pathsep), sys.argv[4:]))
