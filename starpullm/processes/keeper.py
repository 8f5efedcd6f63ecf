"""A program that runs one rank of a job: it writes the rank's output to files, and records how the rank ended.

It is started by path and imports nothing of the package, so that it starts quickly.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
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
EXIT_LAUNCHER_GONE = 1  # only mpirun sees it
MPIRUN_SECONDS = 5.0
"""In which mpirun has to end when the launcher has ended and all ranks are killed."""
_LOOK_SECONDS = 0.05
_START = 18
"""Position of the start time in /proc/PID/stat, after the state."""
_MPIRUN = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra")


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


def process_end(pid: int) -> int:
    """Return a descriptor that is readable once a process has ended, though not yet waited for; the caller closes it.

    Before Linux 5.3, or with a Python that was built for an older one, a thread looks for the process.

    Raises
    ------
    ProcessLookupError
        If there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    began = _start_of(pid)
    if began is None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    reader, writer = os.pipe()
    threading.Thread(target=_look_for, args=(pid, began, writer), daemon=True).start()
    return reader


def _look_for(pid: int, began: str, writer: int) -> None:
    while began and _start_of(pid) == began:
        time.sleep(_LOOK_SECONDS)
    os.close(writer)


def _start_of(pid: int) -> str | None:
    """Return when a process was started, "" if it has ended and was not waited for yet, or None if there is none."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else others[_START]


def main(directory: Path, launcher: int, places: list[str], command: list[str]) -> int:
    """Run a command to its end and return its exit status, or 128 plus the number of the signal that ended it.

    With R the rank, the files in `directory` are ``R.stdout`` and ``R.stderr``; ``R.pid``, the number of the process;
    and after its end ``R.ending``: exit status, negative for a signal, and CLOCK_MONOTONIC in nanoseconds.

    If the process `launcher` ends first, the command is killed, and the job's directories `places` are removed.
    """
    rank, _ = rank_and_size_from_environment()
    # mpirun signals whole process groups, also this process, which has to outlive the command. The command inherits
    # SIG_IGN, but not a handler that does nothing.
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
            write_whole(directory / f"{rank}.pid", str(process.pid))
            _end_with(launcher, process, places)
            status = process.wait()
    write_whole(directory / f"{rank}.ending", f"{status} {time.monotonic_ns()}")
    return status if status >= 0 else 128 - status


def _end_with(launcher: int, process: subprocess.Popen[bytes], places: list[str]) -> None:
    """Wait until the process has ended; if the launcher ends first, kill the process and end this one."""
    with suppress(ProcessLookupError):  # one of them has ended already
        select.select([process_end(launcher), process_end(process.pid)], [], [])
    if process.poll() is None:
        process.kill()
        process.wait()
        for place in places:
            shutil.rmtree(place, ignore_errors=True)  # the keepers of other ranks do the same
        _end_mpirun(os.getppid())
        # mpirun and job.py make this process the leader of a group of its own; another group must not be killed.
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(EXIT_LAUNCHER_GONE)


def _end_mpirun(parent: int) -> None:
    """Leave a process that kills mpirun unless it ends by itself, which it mostly does when its ranks have ended."""
    try:
        name = Path(f"/proc/{parent}/comm").read_text("ascii").strip()
    except (OSError, ValueError):
        return
    if name not in _MPIRUN:
        return
    reader, writer = os.pipe()
    if os.fork() > 0:
        os.close(writer)
        os.read(reader, 1)  # until the other process has left this group, which is killed next
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # mpirun waits for the end of what its ranks write
        os.dup2(nothing, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    with suppress(OSError):
        if not select.select([process_end(parent)], [], [], MPIRUN_SECONDS)[0]:
            os.kill(parent, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(os.pathsep), sys.argv[4:]))
