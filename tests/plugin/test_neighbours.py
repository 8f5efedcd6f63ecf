"""The plugin beside the other plugins that its users have: the real packages, in one pytest, in two workers, on ranks.

Each run is shared by the tests that read what it has written.
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
                of.attrib["name"]: of.attrib["value"] for of in case.iter("property")
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


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run on two ranks."""
    words = ("--with-mpi", "--starpullm-over-ranks", "--reruns=1", "--only-rerun=assert", "--benchmark-autosave")
    return run_pytest(tmp_path_factory.mktemp("ranks"), ON_RANKS, *words, before=mpirun())


@pytest.fixture(scope="module", params=[(), ("-n", "2")], ids=["one", "workers"])
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run of checks, in one process or in two workers of pytest-xdist."""
    words = ("--starpullm-partition=1x1", "--starpullm-report=report.json", "--reruns=1", "--only-rerun=count: failed")
    return run_pytest(tmp_path_factory.mktemp("checks"), CHECKS, *words, *request.param)


class TestOnRanks:
    """Ranks above 0 write nothing and fail nowhere, and all ranks agree."""

    def test_rerunfailures(self, on_ranks: Ended) -> None:
        """A test that fails on one rank is repeated on all."""
        on_ranks.lines.fnmatch_lines_random(
            [
                "*::test_flaky_on_one RERUN*",
                "*::test_flaky_on_one PASSED*",
                "*::test_flaky_alone RERUN*",
                "*::test_flaky_alone PASSED*",
                "*= 1 failed, 11 passed, 1 xfailed, 2 rerun in *",
            ]
        )

    def test_randomly(self, on_ranks: Ended) -> None:
        """All ranks have one order, or the run would have been refused."""
        on_ranks.lines.fnmatch_lines(["Using --randomly-seed=*", "collect* 13 items*"])

    def test_cov(self, on_ranks: Ended) -> None:
        """Each line of the library ran on some rank."""
        on_ranks.lines.fnmatch_lines(["measured.py * 6 * 0 * 100%"])
        assert [path.name for path in on_ranks.directory.glob(".coverage*")] == [".coverage"]

    def test_timeout(self, on_ranks: Ended) -> None:
        on_ranks.lines.fnmatch_lines(["*Failed: Timeout (>0.2s) from pytest-timeout."])

    def test_benchmark(self, on_ranks: Ended) -> None:
        """Only rank 0 stores a record."""
        assert len(list(on_ranks.directory.glob(".benchmarks/*/*.json"))) == 1

    def test_mpi(self, on_ranks: Ended) -> None:
        """pytest-mpi's own summary is printed once."""
        on_ranks.lines.fnmatch_lines(["*= MPI Information =*", "rank: 0", "size: 2"])
        assert sum("MPI Information" in line for line in on_ranks.lines.lines) == 1

    def test_junit(self, on_ranks: Ended) -> None:
        """A test that runs on several ranks is one test."""
        root = ElementTree.parse(on_ranks.directory / "junit.xml").getroot()
        [suite] = root.iter("testsuite")
        assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "0")
        assert "test_all" in on_ranks.testcases()


class TestChecks:
    """Checks of the plugin, in one process and in workers of pytest-xdist."""

    def test_outcomes(self, checked: Ended) -> None:
        checked.lines.fnmatch_lines(["*= 2 failed, 4 passed, 1 rerun in *"])

    def test_rerunfailures(self, checked: Ended) -> None:
        """A check that passes only when it is repeated is counted once, and told as such."""
        checked.lines.fnmatch_lines(
            [
                "other *1x1 lws *2 passed, 2 failed, 1 of them only after reruns *",
                "flaky: test_it.py::test_flaky* passed after 1 rerun; before: count: failed: as told",
            ]
        )
        report = json.loads((checked.directory / "report.json").read_text())
        [flaky] = [test for test in report["tests"] if "flaky" in test["test"]]
        assert (flaky["outcome"], flaky["reruns"]) == ("passed", 1)
        assert flaky["repeated"] == ["count: failed: as told"]
        assert [of["outcome"] for of in flaky["results"]] == ["passed"]
        assert sorted(test["reruns"] for test in report["tests"]) == [0, 0, 0, 1]

    def test_timeout(self, checked: Ended) -> None:
        """Its time limit ends a check, whose reply the next check doesn't get."""
        checked.lines.fnmatch_lines(["*Failed: Timeout (>2.0s) from pytest-timeout."])
        assert checked.testcases()["test_after"]["starpullm.count.compared"] == "5"

    def test_cov(self, checked: Ended) -> None:
        checked.lines.fnmatch_lines(["measured.py * 6 *"])

    def test_junit_properties(self, checked: Ended) -> None:
        cases = checked.testcases()
        assert cases["test_after"] == {
            "starpullm.family": "other",
            "starpullm.placement": "1x1 lws",
            "starpullm.count.verdict": "passed",
            "starpullm.count.compared": "5",
            "starpullm.count.limit": "0",
        }
        assert cases["test_flaky"]["starpullm.reruns"] == "1"
        assert cases["test_flaky"]["starpullm.count.verdict"] == "passed"
        wrong = cases["test_wrong"]
        assert wrong["starpullm.bit_stability.verdict"] == "failed"
        assert wrong["starpullm.bit_stability.compared"] == "1"
        assert (wrong["starpullm.bit_stability.ulps_of_first"], wrong["starpullm.bit_stability.ulps_at_most"]) == (
            "1",
            "1",
        )
        assert cases["test_stranger"] == {"own": "kept"}
