"""A rank that dies, raises, exits or hangs ends the whole job within a time limit; the ending has rank and phase."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from starpullm.processes.endings import Completed, Crashed, ExitedWith, Job, JobEnding, TimedOut
from starpullm.processes.job import FAILURE_SECONDS, processes_of, run_job

from . import programs

if TYPE_CHECKING:  # importing it would initialise MPI in pytest's process
    from mpi4py.MPI import Comm

RANKS = 3
TIME_LIMIT = 60.0
END_SECONDS = 20.0
"""From a failure to the end of the job: two seconds on a quiet machine."""


def run(program: Callable[[Comm], None], time_limit: float = TIME_LIMIT, ranks: int = RANKS) -> JobEnding:
    return run_job(Job([sys.executable, programs.__file__, program.__name__], time_limit, ranks))


def assert_ended_soon(outcome: JobEnding) -> None:
    assert outcome.seconds < TIME_LIMIT
    for report in outcome.reports.values():
        assert report.phase is not None, outcome
        assert report.phase.seconds_ago < END_SECONDS, outcome


def phases_of(outcome: JobEnding) -> dict[int, tuple[str, int | None]]:
    return {rank: (report.phase.phase, report.phase.step) for rank, report in outcome.reports.items() if report.phase}


def test_killed_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun would go on for longer than the job may: it gives the ranks of a busy machine ten seconds, twice."""
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0 * (os.cpu_count() or 1), 0.0, 0.0))
    outcome = run(programs.kill_between_steps)
    assert isinstance(outcome, Crashed), outcome
    assert (outcome.rank, outcome.signal) == (1, signal.SIGKILL)
    assert outcome.sentence == "rank 1 of 3 was ended by SIGKILL (last finished step 20, phase between steps)"
    assert outcome.reports[1].status == -signal.SIGKILL
    for survivor in (0, 2):
        assert outcome.reports[survivor].stderr == (
            f"rank {survivor}: ended by SIGTERM (last finished step 20, phase allreduce)\n"
        )
        assert outcome.reports[survivor].status is not None
    assert outcome.reports[1].phase is not None
    assert outcome.reports[1].phase.seconds_ago < FAILURE_SECONDS


def test_a_slow_rank_says_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun would kill it after a second; on a busy machine it waits longer."""
    monkeypatch.setattr(os, "getloadavg", lambda: (5.0 * (os.cpu_count() or 1), 0.0, 0.0))
    outcome = run(programs.kill_while_others_are_slow)
    assert isinstance(outcome, Crashed), outcome
    assert outcome.rank == 1
    for survivor in (0, 2):
        assert outcome.reports[survivor].stderr == (
            f"rank {survivor}: ended by SIGTERM (last finished step 3, phase busy)\n"
        )
    assert outcome.left_running == ()
    assert_ended_soon(outcome)


def test_raises_while_others_leave() -> None:
    outcome = run(programs.raise_at_the_end)
    assert isinstance(outcome, ExitedWith), outcome
    assert (outcome.rank, outcome.status) == (1, 1)
    assert outcome.sentence == (
        "rank 1 of 3 ended with exit status 1 (last finished step 20, phase at the end): ValueError: found a bad number"
    )
    *_, last_line = outcome.reports[1].stderr.splitlines()
    assert last_line == "rank 1: ValueError: found a bad number (last finished step 20, phase at the end)"
    assert outcome.stderr.count("Traceback") == 1


def test_hangs_at_the_end() -> None:
    outcome = run(programs.hang_at_the_end, time_limit=5, ranks=2)
    assert isinstance(outcome, TimedOut), outcome
    phases = phases_of(outcome)
    assert phases[0][0] == "waiting for the other ranks to end"
    assert phases[1] == ("sleeping", 5)


def test_interrupted_in_a_native_call() -> None:
    outcome = run(programs.interrupt)
    assert isinstance(outcome, ExitedWith), outcome
    assert (outcome.rank, outcome.status) == (1, 128 + signal.SIGINT)
    assert outcome.reports[1].stderr == "rank 1: ended by SIGINT (last finished step 7, phase receiving)\n"
    assert_ended_soon(outcome)


def test_what_a_rank_leaves_behind_is_killed_and_named() -> None:
    outcome = run(programs.orphan)
    assert isinstance(outcome, Completed), outcome
    assert len(outcome.left_running) == RANKS
    assert all("time.sleep" in process for process in outcome.left_running)


@pytest.mark.parametrize("mpirun", ["running", "stopped"])
def test_ranks_end_with_a_launcher_that_is_killed(job_name: str, tmp_path: Path, mpirun: str) -> None:
    """An mpirun that is stopped stands for one that doesn't end although its ranks have ended."""
    code = (
        "import sys, tempfile; from pathlib import Path; from starpullm.processes import job\n"
        "from starpullm.processes.job import *\n"
        "tempfile.tempdir, job._MEMORY = sys.argv[2], Path(sys.argv[2])\n"
        f"run_job(Job([sys.executable, sys.argv[1], 'hang'], {TIME_LIMIT}, {RANKS}))"
    )
    command = [sys.executable, "-c", code, programs.__file__, str(tmp_path / "files")]
    with subprocess.Popen(command) as launcher:
        # The launcher, mpirun, and for each rank its wrapper and its process.
        wait_until(lambda: len(processes_of(job_name)) == 2 + 2 * RANKS)
        if mpirun == "stopped":
            (process,) = (found for found in map(psutil.Process, processes_of(job_name)) if found.name() == "mpirun")
            process.suspend()
        launcher.kill()
    # The reaper's last act: it removes what was written while it killed.
    wait_until(lambda: not processes_of(job_name) and not any((tmp_path / "files").iterdir()))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "still not so after a long time"
        time.sleep(0.02)


def test_mpirun_alone_names_the_rank_and_the_step(job_name: str) -> None:
    """What a user sees who calls mpirun without job.py."""
    command = ["mpirun", "-n", "2", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    command += [sys.executable, programs.__file__, "kill_between_steps"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0: ended by SIGTERM (last finished step 20, phase allreduce)" in done.stderr
    assert "process rank 1" in done.stderr  # mpirun's sentence
    wait_until(lambda: not processes_of(job_name))
