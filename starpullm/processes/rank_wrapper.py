"""A program that runs one rank of a job: it writes the rank's output to files, and records how the rank ended.

It is started by path and imports nothing of the package, so that it starts quickly.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# The variables of Open MPI's mpirun, of MPICH's mpiexec and launchers derived from it, and of Slurm's srun.
RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

EXIT_CANNOT_START = 127  # as shells have it


def rank_and_size_from_environment(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; (0, 1) if it was not started as a rank."""
    environment = os.environ if environment is None else environment
    for rank, size in RANK_AND_SIZE:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers see all of its content or no file."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.rename(path)


def main(directory: Path, command: list[str]) -> int:
    """Run a command to its end and return its exit status, or 128 plus the number of the signal that ended it.

    With R the rank, the files in `directory` are ``R.stdout`` and ``R.stderr``; ``R.pid``, the number of the process;
    and after its end ``R.ending``: exit status, negative for a signal, and CLOCK_MONOTONIC in nanoseconds.
    """
    rank, _ = rank_and_size_from_environment()
    # mpirun signals whole process groups, also this process, which has to outlive the command. The command inherits
    # SIG_IGN, but not a handler that does nothing.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    with suppress(OSError):  # a core file would be left behind
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with (directory / f"{rank}.stdout").open("wb") as stdout, (directory / f"{rank}.stderr").open("wb") as stderr:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        except OSError as error:
            stderr.write(f"{command[0]}: can't be started: {error.strerror}\n".encode())
            status = EXIT_CANNOT_START
        else:
            write_whole(directory / f"{rank}.pid", str(process.pid))
            status = process.wait()
    write_whole(directory / f"{rank}.ending", f"{status} {time.monotonic_ns()}")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
