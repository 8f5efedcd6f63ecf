"""Ranks that don't crash: they end together, report a common mistake once, compare options, and have output apart."""

from __future__ import annotations

import sys
import tempfile

import pytest

from starpullm.processes import job
from starpullm.processes.endings import Completed, ExitedWith, Job, JobEnding
from starpullm.processes.job import run_job

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
