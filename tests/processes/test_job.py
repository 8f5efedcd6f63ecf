"""Tests of jobs of one process, of the command line of mpirun, and of the texts of endings.

They need neither the native library nor MPI; jobs of several ranks are tested in tests/ranks.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from starpullm.errors import MissingDependencyError, RuntimeFailureError
from starpullm.processes import job, stacks
from starpullm.processes.endings import Completed, Crashed, ExitedWith, Job, JobEnding, RankReport, TimedOut
from starpullm.processes.job import job_environment, processes_of, run_job
from starpullm.processes.mpirun import mpirun_command
from starpullm.processes.progress import Phase
from starpullm.processes.reaper import ended_with_this_process

TIME_LIMIT = 60.0


def named(name: str, pids: list[int]) -> list[psutil.Process]:
    """Return those of the processes that have this name; they may end meanwhile."""
    return [
        process for process in psutil.process_iter(["name"]) if process.pid in pids and process.info["name"] == name
    ]


@pytest.fixture(autouse=True)
def job_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a job of the test, which all its processes belong to; check that no process and no file of it is left."""
    name = f"test-{uuid.uuid4().hex}"
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setenv(job.JOB_VARIABLE, name)
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    monkeypatch.setattr(job, "_MEMORY", files)
    yield name
    assert processes_of(name) == []
    assert list(files.iterdir()) == []


def python(code: str, time_limit: float = TIME_LIMIT) -> Job:
    return Job([sys.executable, "-c", code], time_limit)


# ---- Jobs ----


def test_completes() -> None:
    outcome = run_job(python("import sys; print('x' * 1000000); print('note', file=sys.stderr)"))
    assert isinstance(outcome, Completed)
    assert outcome.stdout == "x" * 1000000 + "\n"
    assert outcome.stderr == "note\n"
    assert 0 < outcome.seconds < TIME_LIMIT
    assert outcome.completed() is outcome


def test_exit_status() -> None:
    outcome = run_job(python("import sys; print('why', file=sys.stderr); sys.exit(143)"))
    assert isinstance(outcome, ExitedWith)
    assert (outcome.status, outcome.rank) == (143, 0)
    assert outcome.sentence == "the process ended with exit status 143"
    with pytest.raises(RuntimeFailureError, match=r"(?s)exit status 143.*---- standard error\nwhy"):
        outcome.completed()


def test_crash() -> None:
    outcome = run_job(
        python(
            "import os, signal; from starpullm.processes.progress import report_phase; report_phase('forward', 4)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
    )
    assert isinstance(outcome, Crashed)
    assert (outcome.signal, outcome.rank) == (signal.SIGKILL, 0)
    assert outcome.sentence == "the process was ended by SIGKILL (last finished step 4, phase forward)"


def test_crash_has_pythons_stack() -> None:
    outcome = run_job(python("import ctypes\ndef crash(): ctypes.string_at(0)\ncrash()"))
    assert isinstance(outcome, Crashed)
    assert outcome.signal == signal.SIGSEGV
    assert 'File "<string>", line 2 in crash' in str(outcome)


def test_time_limit() -> None:
    code = (
        "import time; from starpullm.processes.progress import report_phase; report_phase('sleeping', 4)\n"
        "print('begins', flush=True)\n"
        "def sleep(): time.sleep(1000)\n"
        "sleep()"
    )
    outcome = run_job(python(code, time_limit=2))
    assert isinstance(outcome, TimedOut)
    assert outcome.reports[0].phase is not None
    assert (outcome.reports[0].phase.phase, outcome.reports[0].phase.step) == ("sleeping", 4)
    assert outcome.sentence.startswith("not ended after 2 s: was running, last finished step 4, phase sleeping for ")
    assert 2 <= outcome.seconds < 10
    assert outcome.stdout == "begins\n"
    assert "line 3 in sleep" in outcome.stderr
    assert outcome.reports[0].native_stacks


def test_a_process_that_ignores_signals_is_killed() -> None:
    code = (
        "import signal, time\nfor number in (signal.SIGTERM, signal.SIGABRT, signal.SIGINT):\n"
        "    signal.signal(number, signal.SIG_IGN)\nprint('deaf', flush=True)\ntime.sleep(1000)"
    )
    outcome = run_job(python(code, time_limit=2))
    assert isinstance(outcome, TimedOut)
    assert outcome.stdout == "deaf\n"


def test_a_group_of_processes_is_killed() -> None:
    """Processes that the job has started are killed too, also those in a session of their own."""
    code = (
        "import subprocess, sys, time\nfor _ in range(3):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "time.sleep(1000)"
    )
    assert isinstance(run_job(python(code, time_limit=2)), TimedOut)


def test_what_is_left_behind_is_killed_and_named() -> None:
    outcome = run_job(
        python("import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); print('done')")
    )
    assert isinstance(outcome, Completed)
    assert outcome.stdout == "done\n"
    (process,) = outcome.left_running
    assert process.endswith(": sleep 1000")
    assert f"left running, killed: {process}" in str(outcome)


def test_a_process_that_ends_just_after_the_job_is_not_left_behind() -> None:
    outcome = run_job(python("import subprocess; subprocess.Popen(['sleep', '0.1'], start_new_session=True)"))
    assert outcome.left_running == ()


def test_a_job_inside_a_job_ends_with_it() -> None:
    inner = (
        "import sys; from starpullm.processes.job import Job, run_job\n"
        "run_job(Job([sys.executable, '-c', 'import time; time.sleep(1000)'], 1000))"
    )
    assert isinstance(run_job(python(inner, time_limit=3)), TimedOut)


def test_an_exception_in_the_launcher_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job(python("import time; time.sleep(1000)"))


def test_a_process_that_cannot_be_found_yet_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no environment of a process between its start and the end of exec."""
    searches = iter(range(3))
    find = job.processes_of
    monkeypatch.setattr(job, "processes_of", lambda name: [] if next(searches, None) is not None else find(name))
    monkeypatch.setattr(job, "_wait", lambda *_: False)
    monkeypatch.setattr(job, "_native_stacks", lambda *_: {})
    start = time.monotonic()
    assert isinstance(run_job(python("import time; time.sleep(20)")), TimedOut)
    assert time.monotonic() - start < 10


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    outcome = run_job(python("import tempfile; print(tempfile.mkstemp()[1])")).completed()
    assert outcome.stdout.startswith(str(tmp_path / "files"))


def test_a_command_that_is_not_there() -> None:
    outcome = run_job(Job(["/nowhere/program"], TIME_LIMIT))
    assert isinstance(outcome, ExitedWith)
    assert outcome.status == 127
    assert outcome.stderr == "/nowhere/program: can't be started: No such file or directory\n"


# ---- mpirun ----


def test_open_mpi_command() -> None:
    command = mpirun_command("/usr/bin/mpirun", 4, ["A", "B"], open_mpi=True, root=True)
    assert command == [
        *("/usr/bin/mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"),
        *("-x", "A", "-x", "B"),
    ]
    assert "--allow-run-as-root" not in mpirun_command("mpirun", 4, [], open_mpi=True, root=False)


def test_another_mpis_command() -> None:
    assert mpirun_command("mpirun", 4, ["A"], open_mpi=False, root=True) == ["mpirun", "-n", "4"]


def test_no_mpirun(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="mpirun: not found on PATH"):
        run_job(Job(["true"], TIME_LIMIT, ranks=2, environment={"PATH": str(tmp_path)}))


def fake_mpirun(directory: Path, script: str) -> dict[str, str]:
    """Make an mpirun that isn't Open MPI's, and return an environment with it on PATH."""
    path = directory / "bin"
    path.mkdir()
    (path / "mpirun").write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo HYDRA; exit; }}\n{script}\n')
    (path / "mpirun").chmod(0o755)
    return {"PATH": f"{path}:/usr/bin:/bin"}


def test_ranks_as_mpich_numbers_them(tmp_path: Path) -> None:
    script = 'n=$2; shift 2\nfor rank in $(seq 0 $((n - 1))); do PMI_RANK=$rank PMI_SIZE=$n "$@" & done; wait'
    code = (
        "from starpullm.processes.progress import *; report_phase('start'); print(rank_and_size_from_environment()[0])"
    )
    job = Job([sys.executable, "-c", code], TIME_LIMIT, ranks=3, environment=fake_mpirun(tmp_path, script))
    outcome = run_job(job).completed()
    assert outcome.stdout == "0\n1\n2\n"
    assert all(report.phase for report in outcome.reports.values())


def test_a_failure_of_mpirun_itself(tmp_path: Path) -> None:
    environment = fake_mpirun(tmp_path, "echo no slots >&2; exit 5")
    outcome = run_job(Job(["true"], TIME_LIMIT, ranks=2, environment=environment))
    assert isinstance(outcome, ExitedWith)
    assert (outcome.status, outcome.rank) == (5, None)
    assert outcome.sentence == "mpirun ended with exit status 5"
    assert "---- mpirun\nno slots" in str(outcome)
    assert "rank 1: never began" in str(outcome)


def test_ranks_that_go_on_after_a_failure_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This mpirun doesn't end them."""
    monkeypatch.setattr(job, "FAILURE_SECONDS", 1.0)
    script = 'shift 2\nfor rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 "$@" & done; wait'
    code = "import os, sys, time\nif os.environ['PMI_RANK'] == '1': sys.exit(7)\ntime.sleep(1000)"
    environment = fake_mpirun(tmp_path, script)
    start = time.monotonic()
    outcome = run_job(Job([sys.executable, "-c", code], TIME_LIMIT, ranks=2, environment=environment))
    assert time.monotonic() - start < TIME_LIMIT
    assert isinstance(outcome, ExitedWith)
    assert (outcome.status, outcome.rank) == (7, 1)
    assert outcome.reports[0].status is None


# ---- The environment ----


def environment_of(job: Job, base: dict[str, str]) -> dict[str, str]:
    return job_environment(job, base, "name", Path("/job"), Path("/memory"))


def test_environment() -> None:
    job = Job(["true"], 1, environment={"B": "new", "STARPU_NCPU": "1"})
    found = environment_of(job, {"A": "a", "B": "old", "TMPDIR": "/there"})
    assert {name: value for name, value in found.items() if not name.startswith("OMPI_MCA_")} == {
        "A": "a",
        "B": "new",
        "STARPU_NCPU": "1",
        "PYTHONFAULTHANDLER": "1",
        "STARPULLM_JOB": "name",
        "STARPULLM_PROGRESS_DIR": "/job/ranks",
        "TMPDIR": "/job/tmp",
    }
    assert found["OMPI_MCA_btl_vader_backing_directory"] == "/memory"


def test_environment_inside_a_rank() -> None:
    """The variables of an outer MPI job are dropped; outside of one, the user's parameters of Open MPI are kept."""
    rank = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_MCA_ess": "pmi", "PMIX_RANK": "1", "STARPULLM_JOB": "outer"}
    found = environment_of(Job(["true"], 1), {**rank, "A": "a"})
    assert not {"OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess", "PMIX_RANK"} & found.keys()
    assert found["STARPULLM_JOB"] == "outer:name"
    assert environment_of(Job(["true"], 1), {"OMPI_MCA_btl": "self"})["OMPI_MCA_btl"] == "self"


def test_environment_inside_an_allocation() -> None:
    """mpirun must not see the allocation: the ranks of a job are all on this machine. The machine's name stays."""
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "PBS_NODEFILE": "/nodes", "LSB_HOSTS": "a b"}
    found = environment_of(Job(["true"], 1, ranks=2), {**allocation, "SLURMD_NODENAME": "n1", "OMPI_MCA_btl": "self"})
    assert not allocation.keys() & found.keys()
    assert (found["SLURMD_NODENAME"], found["OMPI_MCA_btl"]) == ("n1", "self")


# ---- Texts ----


def ending_of(kind: type[JobEnding], *reports: RankReport, **rest: int) -> JobEnding:
    job = Job(["train", "it"], 30, ranks=len(reports))
    return kind(job, 1.25, {report.rank: report for report in reports}, "mpirun's words\n", (), **rest)


def test_text_of_an_ending() -> None:
    lines = "".join(f"line {line}\n" for line in range(50))
    ending = ending_of(
        Crashed,
        RankReport(0, 100, 143, Phase("allreduce", 4, 2.0), None, "", lines, ""),
        RankReport(1, 101, -11, None, None, "", "", ""),
        signal=11,
        rank=1,
    )
    assert str(ending).splitlines() == [
        "rank 1 of 2 was ended by SIGSEGV",
        "command: train it",
        "rank 0: exit status 143, last finished step 4, phase allreduce for 2.0 s",
        "rank 1: ended by SIGSEGV, no phase reported",
        "---- standard error of rank 0, without the first 10 lines",
        *lines.splitlines()[10:],
        "---- mpirun",
        "mpirun's words",
    ]


def test_text_of_native_stacks() -> None:
    running = RankReport(0, 100, None, Phase("allreduce", None, 28.5), None, "", "", "#0 wait\n#1 main")
    ending = ending_of(TimedOut, running)
    assert ending.sentence == (
        "not ended after 30 s: rank 0 was running, before the first step, phase allreduce for 28.5 s"
    )
    assert "---- native stacks of rank 0\n#0 wait\n#1 main\n" in str(ending)


# ---- Stacks ----


def test_stacks_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a debugger if one is installed, and without one."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert "sleep" in stacks.native_stacks(process.pid, 60)
            monkeypatch.setattr(stacks, "_debuggers", lambda *_, **__: [])
            (line,) = stacks.native_stacks(process.pid, 60).splitlines()
            assert line.startswith(f"thread {process.pid} sleep: state ")
        finally:
            process.kill()


def test_a_thread_that_runs_for_a_moment_is_seen_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a debugger has left it; without a debugger only its state is known."""
    monkeypatch.setattr(stacks, "_debuggers", lambda *_, **__: [])
    code = "import time\nend = time.monotonic() + 0.7\nwhile time.monotonic() < end: pass\ntime.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            time.sleep(0.2)
            (line,) = stacks.native_stacks(process.pid, 60).splitlines()
            assert ": state S, waits in " in line
        finally:
            process.kill()


def test_stacks_of_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert stacks.native_stacks(process.pid, 60) == ""


# ---- The reaper ----


def test_a_program_does_not_outlive_the_process_that_probes_it(job_name: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    code = (
        "import sys; from pathlib import Path; from starpullm.probe.program import run_program\n"
        "command = ['sh', '-c', 'setsid sleep 7654 & exec sleep 7654']\n"
        "run_program(command, {}, 600, Path(sys.argv[1], 'logs'), [Path(sys.argv[1])])"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(place)])
    deadline = time.monotonic() + TIME_LIMIT
    while len(named("sleep", processes_of(job_name))) < 2:
        assert owner.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    owner.kill()
    owner.wait()
    while processes_of(job_name) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_of(job_name) == []
    assert not place.exists()


def test_a_guard_that_is_dismissed_does_nothing(job_name: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "7654"]) as process:
        with ended_with_this_process(job.JOB_VARIABLE, job_name, [tmp_path]):
            pass
        assert process.poll() is None
        process.kill()
    assert tmp_path.exists()
