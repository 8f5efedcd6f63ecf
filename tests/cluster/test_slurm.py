"""The jobs of ci/slurm on a real Slurm: passing, failing, hanging, on a node that fails, and in a full queue.

Each run is judged by what a user gets: the exit status of submit.sh, the summary, and the report of all jobs.
"""

from __future__ import annotations

import json
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

from starpullm.report.document import read_document
from starpullm.report.verdict import Verdict, verdict_of

from ..pytest_children import UNUSED
from .slurm import Cluster, wait_for

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

    def end(self, status: int) -> tuple[dict[str, Any], str]:
        """Wait for the end, and return the summary as JSON and as text; nothing of the run is left."""
        stdout, stderr = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == status, f"{stdout}\n{stderr}"
        summary = json.loads((self.results / "summary.json").read_text("utf-8"))
        assert (summary["version"], summary["status"]) == (1, status)
        assert [job["name"] for job in summary["jobs"]] == [line.split()[0] for line in self.jobs()]
        assert stdout.endswith(f"\nreport: {self.results}/report/index.html\n")
        wait_for(lambda: not self.processes(), 20, f"the end of {self.processes()}")
        assert self.cluster.run("squeue", "--noheader", f"--jobs={','.join(self.ids())}") == ""
        return summary, stdout

    def report(self) -> tuple[Verdict, dict[str, tuple[str, str]]]:
        """What the report of all jobs says: the verdict, and how each run ended."""
        document = read_document(self.results / "report" / "report.json")
        return verdict_of(document), {run["name"]: (run["outcome"], run["ending"]) for run in document["runs"]}

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
    verdict, runs = run.report()
    assert (verdict.kind, verdict.sentence) == (
        "unfinished",
        "1 of 1 runs did not end. So far 0 tests passed and 0 failed.",
    )
    assert runs == {"one-node": ("did not end", job["meaning"])}
    assert hanging.process.poll() is None


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
    verdict, runs = run.report()
    passed = suite["parts"][0]["tests"]["passed"] + ranks["parts"][0]["tests"]["passed"]
    assert verdict[1:] == ("Passed", f"All {passed:,} tests passed.")
    assert runs == dict.fromkeys(("one-node/suite", "ranks/ranks-2"), ("passed", "exit status 0"))
    page = (run.results / "report" / "index.html").read_text("utf-8")
    assert '<th scope="row">1x1</th><td>2</td>' in page  # the parity matrix has the runs over ranks too
    assert "rank 1, worker 0" in page


def test_a_rank_that_fails(cluster: Cluster, tmp_path: Path) -> None:
    run = submit(cluster, tmp_path, "ranks", programs={"starpullm": ON_RANK_1.replace("{command}", "kill -9 $$")})
    summary, text = run.end(4)
    part = summary["jobs"][0]["parts"][0]
    assert (part["name"], part["status"]) == ("ranks-2", "137")
    assert "ranks-2: did not run to its end, exit status 137\n" in text  # mpirun doesn't always name the signal
    verdict, runs = run.report()
    assert verdict.word == "Incomplete"
    assert runs["ranks/ranks-2"][1].startswith("exit status 137")


def test_a_rank_that_hangs(hanging: Run) -> None:
    """The job ends its ranks before Slurm would kill it, and says that it was the time limit."""
    summary, text = hanging.end(4)
    job = summary["jobs"][0]
    assert job["parts"][0]["status"] == "limit"
    assert job["meaning"].startswith("ended at its time limit (Slurm: ")
    assert "ranks-2: did not run to its end, ended at the time limit" in text
    verdict, runs = hanging.report()
    assert verdict.word == "Incomplete"
    assert runs["ranks/ranks-2"][1].startswith("ended at the time limit")


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
    assert "run again 1 times" in (run.results / "report" / "index.html").read_text("utf-8")


OVER_RANKS = """
import os
import pytest
from starpullm.checks.cases import Case
from starpullm.checks.learning import LossFalls

def on_one_machine(place):
    machines = place.runtime.comm.allgather(os.environ["SLURMD_NODENAME"])
    assert machines == ["n1", "n1"], machines
    return LossFalls().run(place, Case("tiny", 1, "ordered"))

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


def test_the_summary_as_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """Without --wait a job of its own makes the summary, whatever the other jobs' end."""
    results = tmp_path / "results"
    environment = {**cluster.environment, "STARPULLM_RANKS": "2"}
    environment["PATH"] = f"{tmp_path}:{Path(sys.executable).parent}:{environment['PATH']}"
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho no network\nexit 5\n")
    (tmp_path / "mpirun").chmod(0o755)
    command = [str(SUBMIT), "--results", str(results), "ranks", "--", "--time=1"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    wait_for((results / "summary.json").exists, SECONDS, "the summary")
    wait_for(lambda: "no network" in (results / "summary.txt").read_text("utf-8"), SECONDS, "the summary's text")
    wait_for((results / "report" / "index.html").exists, SECONDS, "the report")
    assert (results / "summary.txt").read_text("utf-8").startswith("did not run to its end (1 jobs)\n")


def test_refusals(cluster: Cluster, tmp_path: Path) -> None:
    """Bad usage and a job that Slurm refuses end at once; jobs that were submitted before are cancelled."""

    def refused(status: int, *arguments: str) -> str:
        command = [str(SUBMIT), *arguments]
        done = subprocess.run(
            command, env=cluster.environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stderr

    assert "submit: no job named, expected one-node, ranks, gate or all\n" in refused(2, "--results", "r")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert "used: found files, expected a new or empty folder\n" in refused(2, "--results", "used", "ranks")
    told = refused(4, "--results", "many", "--nodes", "9", "one-node", "ranks", "--", "--hold")
    assert told.endswith("submit: ranks: sbatch has refused it; the other jobs were cancelled\n")
    assert cluster.run("squeue", "--noheader", "--name=one-node", "--states=PENDING") == ""
    assert [path.name for path in (tmp_path / "many").iterdir()] == ["jobs"]
