"""The jobs of ci/slurm on a real Slurm: passing, failing, hanging, on a node that fails, and in a full queue.

Each run is judged by what a user gets: the exit status of submit.sh, the summary, and the report of each job.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..pytest_children import UNUSED
from .slurm import SHORT_MINUTES, Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

SUBMIT = Path(__file__).parents[2] / "ci" / "slurm" / "submit.sh"
TINY = str(resources.files("starpullm.golden") / "tiny.json")
SUITE = "--starpullm-records tiny --starpullm-sub-batches 2 -k parity-"
SECONDS = 150.0
"""For a run to end on a busy machine; alone, most take less than ten."""

ON_RANK_1 = '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && {command}\nexec {program} "$@"\n'
ON_FIRST_RUN = '#!/bin/sh\n[ "$SLURM_RESTART_COUNT" ] || exec sleep 1000\nexec {program} "$@"\n'


@dataclass
class Run:
    """A run of submit.sh --wait, in a process of its own."""

    cluster: Cluster
    results: Path
    process: subprocess.Popen[str]
    stderr: str = ""

    def end(self, status: int) -> tuple[dict[str, Any], str]:
        """Wait for the end, and return the summary as JSON and as text; nothing of the run is left."""
        stdout, self.stderr = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == status, f"{stdout}\n{self.stderr}"
        summary = json.loads((self.results / "summary.json").read_text("utf-8"))
        assert (summary["version"], summary["status"]) == (1, status)
        assert [job["name"] for job in summary["jobs"]] == [line.split()[0] for line in self.jobs()]
        wait_for(lambda: not self.processes(), 20, f"the end of {self.processes()}")
        assert self.cluster.run("squeue", "--noheader", f"--jobs={','.join(self.ids())}") == ""
        return summary, stdout

    def jobs(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.results / "jobs").read_text("utf-8").splitlines()
        return []

    def ids(self) -> list[str]:
        return [line.split()[1] for line in self.jobs()]

    def processes(self) -> list[psutil.Process]:
        """What runs of the jobs, on any node."""
        found = []
        for process in self.cluster.processes():
            with suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") in self.ids():
                    found.append(process)
        return found


def submit(
    cluster: Cluster,
    folder: Path,
    *arguments: str,
    programs: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Start submit.sh; `programs` are scripts that take the place of the environment's programs."""
    installed = Path(sys.executable).parent
    wrappers = folder / "bin"
    wrappers.mkdir()
    for name, script in (programs or {}).items():
        (wrappers / name).write_text(script.replace("{program}", str(installed / name)), "utf-8")
        (wrappers / name).chmod(0o755)
    results = folder / "results"
    process = subprocess.Popen(
        [str(SUBMIT), "--results", str(results), "--wait", *arguments],
        env={
            **cluster.environment,
            "PATH": f"{wrappers}:{installed}:{cluster.environment['PATH']}",
            "HWLOC_SYNTHETIC": "numa:1 core:1 pu:1",
            "PYTHONSAFEPATH": "1",
            "PYTEST_ADDOPTS": " ".join(UNUSED),
            "STARPULLM_RANKS": "2",
            "STARPULLM_PARITY_OPTIONS": TINY,
            "STARPULLM_SUITE_OPTIONS": SUITE,
            **(environment or {}),
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Run(cluster, results, process)


@pytest.fixture(scope="module")
def hanging(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose rank 1 hangs. Slurm looks at time limits twice a minute, so other tests run meanwhile."""
    run = submit(
        cluster,
        tmp_path_factory.mktemp("hanging"),
        *("ranks", "--", "--time=1", "--signal=B:TERM@58"),
        programs={"starpullm": ON_RANK_1.replace("{command}", "exec sleep 1000")},
    )
    with run.process:  # closes its pipes too, where the test that reads them has run in another worker
        try:
            wait_for((run.results / "ranks" / "ranks-2.log").exists, SECONDS, "the start of the job that hangs")
            yield run
        finally:
            run.process.kill()


def test_full_queue(cluster: Cluster, hanging: Run, tmp_path: Path) -> None:
    """A job that needs a node of its own doesn't start while another job has some of each node's cores."""
    run = submit(cluster, tmp_path, "--queue-limit", "3", "one-node")
    summary, text = run.end(4)
    job = summary["jobs"][0]
    assert job["slurm_state"] == "CANCELLED"
    assert job["parts"] == []
    assert job["meaning"] == "never started: not started after 3 s (Resources)"
    assert "did not run to its end (1 jobs)\n" in text
    assert hanging.process.poll() is None


FAILS_THREE_TIMES = """#!/bin/sh
echo >>"$0.calls"
[ "$(wc -l <"$0.calls")" -gt 3 ] && exec {squeue} "$@"
echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


def test_a_controller_that_does_not_answer_and_a_partition_with_less_time(cluster: Cluster, tmp_path: Path) -> None:
    """The jobs are waited for all the same, and ask for no more time than their partition allows."""
    squeue = shutil.which("squeue", path=cluster.environment["PATH"])
    assert squeue is not None
    run = submit(
        cluster,
        tmp_path,
        *("ranks", "--", "--partition=short"),
        programs={"squeue": FAILS_THREE_TIMES.replace("{squeue}", squeue)},
    )
    run.end(0)
    told = run.stderr.splitlines()
    assert "ranks: takes at most 5:00 instead of 02:00:00, because its partition allows no more" in told
    assert told.count(next(line for line in told if line.startswith("squeue fails, the jobs are still"))) == 1
    assert f"TimeLimit=00:0{SHORT_MINUTES}:00" in cluster.run("scontrol", "show", "job", run.ids()[0])


def test_a_job_that_can_never_start(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm takes it, by default, and would let it wait for ever."""
    run = submit(cluster, tmp_path, "one-node", "ranks", "--nodes", "9", "--", "--partition=short", "--time=10")
    summary, text = run.end(4)
    for job in summary["jobs"]:
        assert job["meaning"].startswith("never started: can't start (Partition"), text
        assert f"{job['name']}: {job['meaning'].partition(': ')[2]}; cancelled\n" in run.stderr


def test_passing(cluster: Cluster, tmp_path: Path) -> None:
    """The suite on a node, and parity over the ranks of both nodes, beside the jobs of other tests."""
    run = submit(cluster, tmp_path, "one-node", "ranks", "--", "--exclusive=user")
    summary, text = run.end(0)
    suite, ranks = summary["jobs"]
    assert suite["nodes"] in ("n1", "n2")
    assert suite["parts"][0]["tests"]["passed"] > 0
    assert suite["parts"][0]["tests"]["failed"] == 0
    assert ranks["nodes"] == "n[1-2]"
    assert ranks["parts"][0]["last_line"].endswith(" tensors over 3 steps, 0 differ")
    assert text.startswith("passed (2 jobs)\n")
    assert {job["restarts"] for job in summary["jobs"]} == {0}
    for job in (suite, ranks):
        [part] = job["parts"]
        page = (run.results / part["report"] / "index.html").read_text("utf-8")
        assert '<p class="word">✓ Passed</p>' in page
        assert f"    report: {part['report']}\n" in text
    # The parity matrix of the runs over ranks.
    assert re.search('<th scope="row">1x1</th><td[^>]*>2</td>', page)
    assert "rank 1, worker 0" in page


def test_a_rank_that_fails(cluster: Cluster, tmp_path: Path) -> None:
    run = submit(cluster, tmp_path, "ranks", programs={"starpullm": ON_RANK_1.replace("{command}", "kill -9 $$")})
    summary, text = run.end(4)
    part = summary["jobs"][0]["parts"][0]
    assert (part["name"], part["status"]) == ("ranks-2", "137")
    assert "ranks-2: did not run to its end, exit status 137\n" in text  # mpirun doesn't always name the signal


def test_a_rank_that_hangs(hanging: Run) -> None:
    """The job ends its ranks before Slurm would kill it, and says that it was the time limit."""
    summary, text = hanging.end(4)
    job = summary["jobs"][0]
    assert job["parts"][0]["status"] == "limit"
    assert job["meaning"].startswith("ended at its time limit (Slurm: ")
    assert "ranks-2: did not run to its end, ended at the time limit" in text


def test_a_node_that_fails(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm runs the job again, on the other node."""
    run = submit(cluster, tmp_path, "one-node", programs={"pytest": ON_FIRST_RUN})
    log = run.results / "one-node" / "suite.log"
    wait_for(log.exists, SECONDS, "the start of the job")
    first = (run.results / "one-node" / "job").read_text("utf-8").split()[2]
    cluster.kill_node(first)
    # Slurm waits two minutes before it runs the job again.
    cluster.run("scontrol", "update", f"JobId={run.ids()[0]}", "StartTime=now")
    try:
        summary, text = run.end(0)
    finally:
        cluster.start_node(first)
    job = summary["jobs"][0]
    assert {first, job["nodes"]} == {"n1", "n2"}
    assert job["restarts"] == 1
    assert job["parts"][0]["tests"]["passed"] > 0
    assert "run again 1 times): passed\n" in text


OVER_RANKS = """
import os
import pytest
from starpullm.checks.cases import Case
from starpullm.checks.learning import LossFalls

def on_one_machine(place):
    machines = place.runtime.comm.allgather(os.environ["SLURMD_NODENAME"])
    assert machines == ["n1", "n1"], machines
    return LossFalls().run(place, Case("tiny", sub_batches=1, reduction="ordered"))

@pytest.mark.starpullm_over_ranks
def test_machines(starpullm_check):
    starpullm_check(on_one_machine)
"""


def test_the_ranks_of_checks_are_on_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    """The ranks of pytest are on both nodes; those of a check are on the first, and the results say so."""
    (tmp_path / "test_place.py").write_text(OVER_RANKS, "utf-8")
    report, output = tmp_path / "report.json", tmp_path / "output"
    pytest_over_ranks = (
        "export SLURM_OVERLAP=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; "
        f"exec mpirun -n 2 --map-by node --bind-to none {sys.executable} -P -m pytest {' '.join(UNUSED)} "
        f"-p no:cacheprovider --with-mpi --starpullm-partition 1x1 --starpullm-report {report} test_place.py"
    )
    options = ["--nodes=2", "--ntasks-per-node=1", f"--output={output}", f"--chdir={tmp_path}"]
    two_cores = ["env", "HWLOC_SYNTHETIC=numa:1 core:2 pu:1"]
    job = cluster.run(*two_cores, "sbatch", "--parsable", *options, f"--wrap={pytest_over_ranks}").strip()
    wait_for(lambda: not cluster.run("squeue", "--noheader", f"--jobs={job}"), SECONDS, f"the end of job {job}")
    assert "ExitCode=0:0" in cluster.run("scontrol", "show", "job", "--oneliner", job), output.read_text("utf-8")
    note = "checks over ranks: all ranks were on n1; no check has used n2 of this run's machines"
    assert any(line.startswith(note) for line in json.loads(report.read_text("utf-8"))["notes"])
    assert note in output.read_text("utf-8")


def test_one_process_inside_an_allocation_is_no_rank(cluster: Cluster) -> None:
    """It has the allocation's number of tasks in its environment. Tasks of srun that MPI doesn't join are refused."""
    command = [sys.executable, "-m", "starpullm.commands", "parity", "tiny"]
    environment = {**cluster.environment, "HWLOC_SYNTHETIC": "numa:1 core:1 pu:1", "PYTHONSAFEPATH": "1"}
    alone, tasks = (
        subprocess.run(
            [*launcher, *command], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        for launcher in (("salloc", "--ntasks=2"), ("srun", "--ntasks=2"))
    )
    assert alone.returncode == 0, alone
    assert alone.stdout.endswith(", 0 differ\n")
    assert tasks.returncode != 0
    assert "differ" not in tasks.stdout


def test_the_summary_as_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """Without --wait a job of its own makes the summary, whatever the other jobs' end."""
    results = tmp_path / "results"
    environment = {**cluster.environment, "STARPULLM_RANKS": "2"}
    environment["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{environment['PATH']}"
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho no network\nexit 5\n")
    (tmp_path / "mpirun").chmod(0o755)
    command = [str(SUBMIT), "--results", str(results), "ranks", "--", "--time=1", "--partition=short"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    wait_for((results / "summary.json").exists, SECONDS, "the summary")
    wait_for(lambda: "no network" in (results / "summary.txt").read_text("utf-8"), SECONDS, "the summary's text")
    assert (results / "summary.txt").read_text("utf-8").startswith("did not run to its end (1 jobs)\n")


def test_refusals(cluster: Cluster, tmp_path: Path) -> None:
    """Bad usage and a job that Slurm refuses end at once; jobs that were submitted before are cancelled."""

    def refused(status: int, *arguments: str) -> str:
        command = [str(SUBMIT), *arguments]
        environment = {**cluster.environment, "PATH": f"{tmp_path}:{cluster.environment['PATH']}"}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stderr

    assert "submit: no job named, expected one-node, ranks, gate or all\n" in refused(2, "--results", "r")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert "used: found files, expected a new or empty folder\n" in refused(2, "--results", "used", "ranks")
    # By default Slurm takes most jobs that can't start; no node has this feature.
    sbatch = shutil.which("sbatch", path=cluster.environment["PATH"])
    script = f'#!/bin/sh\ncase "$*" in *--job-name=ranks*) set -- --constraint=none "$@" ;; esac\nexec {sbatch} "$@"\n'
    (tmp_path / "sbatch").write_text(script, "utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    told = refused(4, "--results", "many", "one-node", "ranks", "--", "--hold")
    assert told.endswith("submit: ranks: sbatch has refused it; the other jobs were cancelled\n")
    assert cluster.run("squeue", "--noheader", "--name=one-node", "--states=PENDING") == ""
    assert [path.name for path in (tmp_path / "many").iterdir()] == ["jobs"]
