"""How several ranks are started: the command line of mpirun and the environment of ranks.

It is apart from ``job.py`` because only this depends on the MPI implementation.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from starpullm.errors import MissingDependencyError
from starpullm.processes.rank_wrapper import RANK_AND_SIZE

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted")
"""The programs that start ranks on the first host and on the others; not those of a scheduler, which it ends."""

# All variables of a rank's job, which would confuse an mpirun inside the rank.
_OUTER_JOB = ("OMPI_*", "ORTE_*", "PRTE_*", "PMIX_*", "PMI_*")

# The variables of a scheduler's allocation. With them, mpirun would start some of the ranks on the allocation's other
# machines, where neither their files nor their processes can be watched.
_ALLOCATION = ("SLURM_*", "PBS_*", "LSB_*", "PE_HOSTFILE")


def mpirun_here(ranks: int, exported: Sequence[str], path: str | None) -> list[str]:
    """Return the `mpirun_command` of the mpirun that is on a PATH."""
    mpirun = shutil.which("mpirun", path=path)
    if mpirun is None:
        raise MissingDependencyError(
            "mpirun: not found on PATH, expected it for several ranks: apt-get install openmpi-bin"
        )
    return mpirun_command(mpirun, ranks, exported, open_mpi=_is_open_mpi(mpirun), root=os.geteuid() == 0)


def mpirun_command(mpirun: str, ranks: int, exported: Sequence[str], *, open_mpi: bool, root: bool) -> list[str]:
    """Return the part of a command line that precedes the command of the ranks.

    Open MPI's mpirun does not pass on all variables by itself: those that ranks need are exported by name. Another
    mpirun gets only the number of ranks, an option that all of them have.
    """
    command = [mpirun, "-n", str(ranks)]
    if not open_mpi:
        return command
    # Unbound: the partition of each rank decides which cores it uses.
    command += ["--oversubscribe", "--bind-to", "none"]
    if root:
        command.append("--allow-run-as-root")
    for name in exported:
        command += ["-x", name]
    return command


def host_name() -> str:
    """Return the name by which Slurm knows this machine, or else its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def load_average() -> float | None:
    """Return how many processes ran or waited in the last minute; None if the system doesn't say."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def outside_of_jobs(environment: Mapping[str, str], *, on_this_machine: bool) -> dict[str, str]:
    """Return an environment without the variables of the MPI job in which this process is a rank, if it is one.

    Those of a scheduler's allocation are left out too if the ranks that are started there are on this machine.
    """
    dropped = list(_ALLOCATION) if on_this_machine else []
    if any(rank in environment for rank, _ in RANK_AND_SIZE):
        dropped += [*_OUTER_JOB, *(name for names in RANK_AND_SIZE for name in names)]
    return {
        name: value for name, value in environment.items() if not any(fnmatchcase(name, pattern) for pattern in dropped)
    }


def mpi_parameters(temporary: Path, memory: Path) -> dict[str, str]:
    """Return the variables that tell Open MPI where to put its files and its shared memory, and when to kill ranks."""
    # mpirun sends the other ranks of one that has failed SIGTERM and, a second later, SIGKILL. On a busy machine they
    # need longer to say where they were.
    patience = 1 + min(int((load_average() or 0) / (os.cpu_count() or 1)), 9)
    return {
        "OMPI_MCA_odls_base_sigkill_timeout": str(patience),
        "OMPI_MCA_orte_tmpdir_base": str(temporary),
        "OMPI_MCA_btl_vader_backing_directory": str(memory),
        "OMPI_MCA_osc_sm_backing_directory": str(memory),
        "OMPI_MCA_osc_rdma_backing_directory": str(memory),
    }


@cache
def _is_open_mpi(mpirun: str) -> bool:
    run = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return "Open MPI" in run.stdout or "OpenRTE" in run.stdout
