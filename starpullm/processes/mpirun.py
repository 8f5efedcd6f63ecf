"""How several ranks are started: the command line of mpirun and the environment of ranks.

It is apart from ``job.py`` because only this depends on the MPI implementation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from starpullm.errors import MissingDependencyError
from starpullm.processes.keeper import RANK_AND_SIZE

# All variables of a rank's job, which would confuse an mpirun inside the rank.
_OUTER_JOB = ("OMPI_*", "ORTE_*", "PRTE_*", "PMIX_*", "PMI_*", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


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


def outer_job_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return patterns of the variables that belong to the MPI job in which this process is a rank, if it is one."""
    return _OUTER_JOB if any(rank in environment for rank, _ in RANK_AND_SIZE) else ()


def mpi_directories(temporary: Path, memory: Path) -> dict[str, str]:
    """Return the variables that make Open MPI put its files, and its shared memory, into these directories."""
    return {
        "OMPI_MCA_orte_tmpdir_base": str(temporary),
        "OMPI_MCA_btl_vader_backing_directory": str(memory),
        "OMPI_MCA_osc_sm_backing_directory": str(memory),
        "OMPI_MCA_osc_rdma_backing_directory": str(memory),
    }


@cache
def _is_open_mpi(mpirun: str) -> bool:
    run = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return "Open MPI" in run.stdout or "OpenRTE" in run.stdout
