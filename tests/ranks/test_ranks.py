"""Ranks that don't crash: they end together, report a common mistake once, compare options, and have output apart."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import pytest

from starpullm.processes import job
from starpullm.processes.endings import Completed, ExitedWith, Job, JobEnding
from starpullm.processes.job import run_job
from starpullm.processes.mpirun import outside_of_jobs

from . import programs
from .test_failures import RANKS, TIME_LIMIT, run


def test_output_is_kept_apart() -> None:
    outcome = run(programs.complete)
    assert isinstance(outcome, Completed), outcome
    assert outcome.completed() is outcome
    for rank, report in outcome.reports.items():
        assert report.stdout.splitlines() == [f"rank {rank} of {RANKS}, line {line}" for line in range(2000)]
        assert report.stderr == f"note of rank {rank}\n"
        assert report.status == 0
    assert len(outcome.stdout.splitlines()) == RANKS * 2000
    assert outcome.left_running == ()
    assert outcome.launcher_stderr == ""


def test_exit_status_0_is_no_failure() -> None:
    assert isinstance(run(programs.exit_with_0), Completed)


def assert_refused(outcome: JobEnding, status: int) -> ExitedWith:
    assert isinstance(outcome, ExitedWith), outcome
    assert outcome.status == status
    assert "MPI_ABORT" not in outcome.launcher_stderr
    assert "Traceback" not in outcome.stderr
    return outcome


def test_one_sentence_for_a_mistake_on_all_ranks() -> None:
    outcome = assert_refused(run(programs.refuse_everywhere), 2)
    assert outcome.stderr == (
        "ranks 0-2: batch_size: found 0, expected at least 1 (before the first step, phase start)\n"
    )


def test_each_mistake_is_said() -> None:
    outcome = assert_refused(run(programs.refuse_on_some), 2)
    assert outcome.stderr.splitlines() == [
        "ranks 0, 2: batch_size: found 0, expected at least 1 (before the first step, phase start)",
        "rank 1: No such option: --fast (before the first step, phase start)",
    ]


def test_exit_status_of_all_ranks_loses_no_output() -> None:
    outcome = assert_refused(run(programs.exit_with_1_everywhere), 1)
    assert outcome.stdout.count("result\n") == 5000
    assert outcome.stderr == ""


def test_different_options() -> None:
    outcome = assert_refused(run(programs.different_options), 2)
    assert outcome.stderr == (
        "ranks 0-2: different options on ranks: sub_batches is 2 on rank 0 and 4 on ranks 1-2, expected the same "
        "everywhere (before the first step, phase start)\n"
    )


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "kept")
    job = Job(
        [sys.executable, programs.__file__, "environment"],
        TIME_LIMIT,
        ranks=2,
        environment={"ADDED": "with spaces, and = too"},
    )
    outcome = run_job(job).completed()
    assert [report.stdout for report in outcome.reports.values()] == ["with spaces, and = too kept\n"] * 2


def test_shared_memory_is_in_a_directory_of_the_job() -> None:
    outcome = run(programs.shared_files).completed()
    for report in outcome.reports.values():
        files = report.stdout.splitlines()
        assert any("vader_segment" in file for file in files), outcome
        places = (f"{job._MEMORY}/starpullm-", f"{tempfile.gettempdir()}/starpullm-")
        assert all(file.startswith(places) for file in files), outcome


def test_a_job_inside_a_rank() -> None:
    """A rank can run mpirun itself, despite the variables that make it a rank."""
    code = (
        "import sys; from starpullm.processes.job import Job, run_job\n"
        "print(run_job(Job([sys.executable, sys.argv[1], 'environment'], 30, 2)).completed().stdout.count('None'))"
    )
    outcome = run_job(Job([sys.executable, "-c", code, programs.__file__], TIME_LIMIT, ranks=1)).completed()
    assert outcome.stdout == "4\n"


LAUNCHERS = {
    "PMI_SIZE": {"PMI_RANK": "0", "PMI_SIZE": "2"},
    "OMPI_COMM_WORLD_SIZE": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    "SLURM_STEP_NUM_TASKS": {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"},  # srun without PMI
    "PMIX_RANK": {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"},
}
"""Of another MPI than that of mpi4py, by which variable of theirs says two."""


def refusal(command: Sequence[object], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**outside_of_jobs(os.environ, on_this_machine=True), **variables}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_launcher_of_another_mpi_is_refused(launcher: str) -> None:
    """Each rank would train alone, on its part of the batch, and all would write the same file."""
    size = launcher if launcher.endswith("SIZE") else "SLURM_STEP_NUM_TASKS"
    sentence = f"ranks: {size} is 2, but MPI_COMM_WORLD has 1, expected the launcher of the MPI library"
    run = refusal(["-m", "starpullm.commands", "parity", "tiny"], LAUNCHERS[launcher])
    assert (run.returncode, run.stdout) == (2, ""), run
    assert run.stderr.startswith(f"Error: {sentence} that mpi4py uses: ")


def test_the_launcher_of_another_mpi_is_refused_by_pytest() -> None:
    run = refusal(["-m", "pytest", "--with-mpi", "--pyargs", "starpullm.suite"], LAUNCHERS["PMI_SIZE"])
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run
    assert "ERROR: --with-mpi: ranks: PMI_SIZE is 2, but MPI_COMM_WORLD has 1, expected the launcher" in run.stderr


def test_a_runtime_refuses_the_launcher_of_another_mpi() -> None:
    """As soon as the program has initialised MPI, whatever communicator it gives; it may have found a single rank."""
    code = """
from starpullm import Runtime
from starpullm.errors import InvalidArgumentError

Runtime().close()
from mpi4py import MPI
for comm in (None, MPI.COMM_WORLD):
    try:
        Runtime(comm=comm)
    except InvalidArgumentError as error:
        print(error)
"""
    run = refusal(["-c", code], {**LAUNCHERS["PMI_SIZE"], "HWLOC_SYNTHETIC": "numa:1 core:1 pu:1"})
    assert run.returncode == 0, run
    lines = run.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == 2 * ["ranks: PMI_SIZE is 2"]


def test_one_process_in_an_allocation_is_no_rank() -> None:
    """A batch script of Slurm has the number of tasks that it may start, and is none of them."""
    batch = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2"}
    run = refusal(["-m", "starpullm.commands", "parity", "tiny"], batch)
    assert run.returncode == 0, run
