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

TIME_LIMIT = 60.0
START = """
import os, sys
from starpullm import Runtime
from starpullm.processes.ranks import guarded, world
partition, _, cores = sys.argv[1 + world().Get_rank()].partition(" on ")
if cores:
    os.environ["OWN_CORES"] = cores
with guarded(world()):
    Runtime(partition, comm=world())
"""


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


@pytest.mark.parametrize(
    ("topology", "ranks", "expected"),
    [
        ("core:5 pu:1", ["2x1", "1x1", "1x2"], ["bound: 0 1", "bound: 2", "bound: 3 4"]),
        ("core:4 pu:1", ["2x1", "1x1", "1x2"], ["not bound"] * 3),
        ("core:8 pu:1", ["2x1 on 2-3", "2x1 on 2-3"], ["not bound"] * 2),
        (
            "pack:2 core:3 pu:2",
            ["1x1 on 0-5", "2x1 on 0-5", "1x2 on 6-11", "1x2 on 6-11"],
            ["bound: 0", "bound: 2 4", "not bound", "not bound"],
        ),
        (
            "pack:2 core:18 pu:1",
            ["9x1 on 0-17", "9x1 on 18-35", "9x1 on 0-17", "9x1 on 18-35"],
            [f"bound: {' '.join(map(str, range(first, first + 9)))}" for first in (0, 18, 9, 27)],
        ),
    ],
)
def test_cores_of_ranks(reported_cores: Path, topology: str, ranks: list[str], expected: list[str]) -> None:
    """Each rank takes those after the cores of the ranks before it that may use the same ones."""
    environment = {
        "LD_PRELOAD": str(reported_cores),
        "HWLOC_SYNTHETIC": topology,
        "HWLOC_THISSYSTEM": "1",  # so that it isn't taken for a synthetic one, where nothing is bound
    }
    outcome = run_job(Job([sys.executable, "-c", START, *ranks], TIME_LIMIT, len(ranks), environment=environment))
    assert isinstance(outcome, ExitedWith), outcome
    assert "could not be started (error -1)" in outcome.stderr
    assert [report.stdout.strip() for report in outcome.reports.values()] == expected
