"""Ranks on one machine: which cores each of them binds its workers to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from starpullm.binding import prototypes, structs
from starpullm.processes.endings import ExitedWith, Job
from starpullm.processes.job import run_job

PARTITIONS = ("2x1", "1x1", "1x2")
TIME_LIMIT = 60.0
START = (
    "import sys; from starpullm import Runtime; from starpullm.processes.ranks import guarded, world\n"
    "with guarded(world()): Runtime(sys.argv[1 + world().Get_rank()], comm=world())"
)


@pytest.fixture(scope="module")
def reported_cores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    info = structs.new("build_info")
    prototypes.call("build_info", info)
    library = tmp_path_factory.mktemp("library") / "reported_cores.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    headers = f"-I{prototypes.text(info.starpu_prefix)}/include/starpu/1.4"
    source = Path(__file__).with_name("reported_cores.c")
    subprocess.run([compiler, "-shared", "-fPIC", headers, "-o", library, source], timeout=60, check=True)
    return library


def test_ranks_of_different_partitions_share_no_core(reported_cores: Path) -> None:
    """Each rank takes those after the cores of the ranks before it."""
    environment = {
        "LD_PRELOAD": str(reported_cores),
        "HWLOC_SYNTHETIC": "core:5 pu:1",
        "HWLOC_THISSYSTEM": "1",  # so that it isn't taken for a synthetic one, where nothing is bound
    }
    job = Job([sys.executable, "-c", START, *PARTITIONS], TIME_LIMIT, len(PARTITIONS), environment=environment)
    outcome = run_job(job)
    assert isinstance(outcome, ExitedWith), outcome
    assert "could not be started (error -1)" in outcome.stderr
    assert [report.stdout.strip() for report in outcome.reports.values()] == ["bound: 0 1", "bound: 2", "bound: 3 4"]
