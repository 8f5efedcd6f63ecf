"""The plugin beside the other plugins that its users have: the real packages, in one pytest, in two workers, on ranks.

Each run is one test, because two workers of pytest-xdist would make a shared one twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from ..pytest_children import load_plugin
from .conftest import job_environment, mpirun

LIBRARY = """
def of(rank):
    if rank == 0:
        return "zero"
    if rank == 1:
        return "one"
    return "other"
"""

ON_RANKS = """
import pytest
from mpi4py import MPI

import measured

RANK = MPI.COMM_WORLD.Get_rank()
calls = []


@pytest.mark.mpi
@pytest.mark.parametrize("number", range(4))
def test_all(number):
    assert measured.of(RANK)
    MPI.COMM_WORLD.barrier()


@pytest.mark.parametrize("number", range(4))
def test_first(number):
    assert measured.of(9) == "other"


@pytest.mark.mpi
def test_flaky_on_one():
    calls.append(MPI.COMM_WORLD.allreduce(1))
    assert RANK == 0 or len(calls) > 1


def test_flaky_alone():
    calls.append(0)
    assert calls.count(0) > 1


@pytest.mark.mpi
@pytest.mark.xfail(raises=ValueError, strict=True)
def test_known_on_one():
    if RANK == 1:
        raise ValueError


@pytest.mark.timeout(0.2)
def test_late():
    import time

    time.sleep(30)


def test_speed(benchmark):
    benchmark.pedantic(int, rounds=2)
"""

CHECKS = """
import time
from pathlib import Path

import numpy as np
import pytest

from starpullm.checks.result import Outcome, Result
from starpullm.checks.same_bits import BitStability


def result(place, outcome, count):
    return Result(check="count", outcome=Outcome(outcome), sentence="as told", compared=count)


def second_time(place, directory):
    file = Path(directory, "was here")
    known = file.exists()
    file.touch()
    return result(place, "passed" if known else "failed", 3)


def other_bits(place):
    right = np.array([1, 2], np.float32)
    wrong = right.copy()
    wrong[0] = np.nextafter(np.float32(1), np.float32(2))
    return BitStability().together({"one": {"a": right}, "other": {"a": wrong}})


def hang(place):
    time.sleep(60)


def test_flaky(starpullm_check, pytestconfig):
    starpullm_check(second_time, directory=str(pytestconfig.rootpath))


def test_wrong(starpullm_check):
    starpullm_check(other_bits)


@pytest.mark.timeout(2)
def test_late(starpullm_check):
    starpullm_check(hang)


def test_after(starpullm_check):
    import measured

    measured.of(1)
    starpullm_check(result, outcome="passed", count=5)


def test_speed(benchmark):
    benchmark.pedantic(int, rounds=2)


def test_stranger(request):
    request.node.user_properties.append(("own", "kept"))
"""


class Ended(NamedTuple):
    """A run of pytest that has ended: what it printed, and the folder in which it wrote."""

    lines: pytest.LineMatcher
    directory: Path

    def testcases(self) -> dict[str, dict[str, str]]:
        """Return the properties of each test in the JUnit XML."""
        cases = ElementTree.parse(self.directory / "junit.xml").iter("testcase")
        return {
            case.attrib["name"].partition("[")[0]: {
                item.attrib["name"]: item.attrib["value"] for item in case.iter("property")
            }
            for case in cases
        }


def run_pytest(directory: Path, source: str, *words: str, before: tuple[str, ...] = ()) -> Ended:
    """Run pytest with all its plugins on a file of tests and a library whose coverage is measured."""
    project = directory / "project"
    project.mkdir()
    (project / "test_it.py").write_text(source)
    (project / "measured.py").write_text(LIBRARY)
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    options = "--cov=measured --cov-report=term-missing --junitxml=junit.xml --timeout=60 --color=no -v -W error"
    command = [*before, sys.executable, "-m", "pytest", *load_plugin(), *options.split(), *words]
    with job_environment(directory):
        ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=100)
    return Ended(pytest.LineMatcher((ended.stdout + ended.stderr).splitlines()), project)


def test_on_ranks(tmp_path: Path) -> None:
    """Ranks above 0 write nothing and fail nowhere, and all ranks agree."""
    words = ("--with-mpi", "--starpullm-over-ranks", "--reruns=1", "--only-rerun=assert", "--benchmark-autosave")
    ended = run_pytest(tmp_path, ON_RANKS, *words, before=mpirun())
    # pytest-randomly: all ranks have one order, or the run would have been refused.
    ended.lines.fnmatch_lines(["Using --randomly-seed=*", "collect* 13 items*"])
    # pytest-rerunfailures: a test that fails on one rank is repeated on all.
    ended.lines.fnmatch_lines_random(
        [
            "*::test_flaky_on_one RERUN*",
            "*::test_flaky_on_one PASSED*",
            "*::test_flaky_alone RERUN*",
            "*::test_flaky_alone PASSED*",
            "*= 1 failed, 11 passed, 1 xfailed, 2 rerun in *",
        ]
    )
    ended.lines.fnmatch_lines(["*Failed: Timeout (>0.2s) from pytest-timeout."])
    # pytest-cov: each line of the library ran on some rank.
    ended.lines.fnmatch_lines(["measured.py * 6 * 0 * 100%"])
    assert [path.name for path in ended.directory.glob(".coverage*")] == [".coverage"]
    # pytest-benchmark: only rank 0 stores a record.
    assert len(list(ended.directory.glob(".benchmarks/*/*.json"))) == 1
    # pytest-mpi's own summary is printed once.
    ended.lines.fnmatch_lines(["*= MPI Information =*", "rank: 0", "size: 2"])
    assert sum("MPI Information" in line for line in ended.lines.lines) == 1
    # JUnit: a test that runs on several ranks is one test.
    [suite] = ElementTree.parse(ended.directory / "junit.xml").getroot().iter("testsuite")
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "0")
    assert "test_all" in ended.testcases()


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one", "workers"])
def test_checks(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Checks of the plugin, in one process or in two workers of pytest-xdist."""
    words = (
        "--starpullm-partition=1x1",
        "--starpullm-report=report.json",
        "--reruns=1",
        "--only-rerun=count .*: failed",
    )
    ended = run_pytest(tmp_path, CHECKS, *words, *workers)
    ended.lines.fnmatch_lines(["*= 2 failed, 4 passed, 1 rerun in *"])
    # Its time limit ends a check, whose reply the next check doesn't get.
    ended.lines.fnmatch_lines(["*Failed: Timeout (>2.0s) from pytest-timeout."])
    ended.lines.fnmatch_lines(["measured.py * 6 *"])
    assert_repeated_once(ended)
    cases = ended.testcases()
    assert cases["test_after"] == {
        "starpullm.family": "other",
        "starpullm.placement": "1x1 lws",
        "starpullm.count.verdict": "passed",
        "starpullm.count.compared": "5",
        "starpullm.count.limit": "0",
    }
    assert cases["test_flaky"]["starpullm.reruns"] == "1"
    assert cases["test_flaky"]["starpullm.count.verdict"] == "passed"
    found = ("verdict", "compared", "ulps_of_first", "ulps_at_most")
    wrong = [cases["test_wrong"][f"starpullm.bit_stability.{name}"] for name in found]
    assert wrong == ["failed", "1", "1", "1"]
    assert cases["test_stranger"] == {"own": "kept"}


def assert_repeated_once(ended: Ended) -> None:
    """A check that passes only when it is repeated is counted once, and told as such."""
    ended.lines.fnmatch_lines(
        [
            "other *1x1 lws *2 passed, 2 failed, 1 of them only after reruns *",
            "flaky: *::test_flaky* passed after 1 rerun; before: count of test_flaky on 1x1 lws: failed: as told",
        ]
    )
    report = json.loads((ended.directory / "report.json").read_text())
    [flaky] = [test for test in report["tests"] if "flaky" in test["test"]]
    assert (flaky["outcome"], flaky["reruns"]) == ("passed", 1)
    assert flaky["repeated"] == ["count of test_flaky on 1x1 lws: failed: as told"]
    assert [result["outcome"] for result in flaky["results"]] == ["passed"]
    assert sorted(test["reruns"] for test in report["tests"]) == [0, 0, 0, 1]
