"""Options on the command line and in the ini file, and runs that they don't concern."""

from __future__ import annotations

import re

import pytest

from starpullm.pytest_plugin.entries import FAMILIES, FIXTURES

from .conftest import Run

NO_CHILD = """
import sys


def refuse(event, arguments):
    if event == "subprocess.Popen" and "starpullm." in str(arguments[1]):
        raise AssertionError(arguments[1])


sys.addaudithook(refuse)
"""

BAD = """
--starpullm-library=nowhere.so --starpullm-partition=99x99 --starpullm-records=none --starpullm-sub-batches=0
--starpullm-report=report.json --starpullm-time-limit=0 --starpullm-seed=x --starpullm-ranks=2 --starpullm-strict
--starpullm-benchmark
"""


def test_options_concern_no_test_of_a_stranger(run_apart: Run, pytester: pytest.Pytester) -> None:
    """Nothing is checked, started, imported, written or printed."""
    pytester.makeconftest(NO_CHILD)
    pytester.makepyfile("import sys\n\ndef test_plain():\n    assert 'numpy' not in sys.modules\n")
    pytester.makeini("[pytest]\nstarpullm_reductions = magic\nstarpullm_fresh = perhaps\n")
    result = run_apart(*BAD.split(), "--strict-config", "--strict-markers", partition=None)
    result.assert_outcomes(passed=1)
    lines = [line for line in result.outlines if "starpullm" in line and not line.startswith("plugins:")]
    assert (lines, result.errlines) == ([], [])
    assert not (pytester.path / "report.json").exists()


PARAMETRISED = "def test_it(starpullm_golden, starpullm_configuration):\n    pass\n"


def test_the_command_line_precedes_the_ini_file(run: Run, pytester: pytest.Pytester) -> None:
    """Lists have commas, or are repeated; in the ini file they have lines too."""
    pytester.makepyfile(PARAMETRISED)
    pytester.makeini(
        "[pytest]\nstarpullm_records = tiny\nstarpullm_partition =\n    2x1\n    1x1\nstarpullm_schedulers = eager\n"
    )
    records = ("--starpullm-records", "small,tiny", "--starpullm-records=odd")
    result = run("--collect-only", "-q", *records, partition=None)
    found = re.findall(r"::test_it\[(.*)\]", result.stdout.str())
    expected = {(record, partition) for record in ("small", "tiny", "odd") for partition in ("2x1", "1x1")}
    assert {tuple(sorted(name.split("-"))) for name in found} == {
        tuple(sorted((*names, "eager"))) for names in expected
    }


def test_a_bad_value_in_the_ini_file_is_named(run: Run, pytester: pytest.Pytester) -> None:
    """The ini file's name of the option is used; paths are relative to the file."""
    pytester.makepyfile(PARAMETRISED)
    for line, sentence in (
        ("starpullm_seed = x\nstarpullm_blocks = 1", 'starpullm_seed: found "x", expected an integer'),
        ("starpullm_library = nowhere.so", f"starpullm_library: {pytester.path}/nowhere.so: no such file"),
    ):
        pytester.makeini(f"[pytest]\n{line}\n")
        folder = pytester.path / "elsewhere"
        folder.mkdir(exist_ok=True)
        result = run("--collect-only", f"--rootdir={pytester.path}", partition=None)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {sentence}"])


def test_values_are_checked_without_assert_statements_too(
    run_apart: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `python -O`."""
    pytester.makepyfile("def test_it(starpullm_validation):\n    pass\n")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    result = run_apart("-W", "ignore::pytest.PytestConfigWarning", "--starpullm-reductions", "magic")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(['ERROR: --starpullm-reductions: found "magic", expected one of *'])


@pytest.mark.parametrize(
    ("option", "sentence"),
    [("records", "*/huge: no such file, expected one *"), ("schedulers", 'found "huge", expected one of *lws*')],
)
def test_a_usage_error_under_xdist(run_apart: Run, pytester: pytest.Pytester, option: str, sentence: str) -> None:
    """The workers find it, in the collection or in what the library says, and the controller tells it once."""
    pytester.makepyfile(PARAMETRISED)
    result = run_apart("-p", "xdist", "-n", "2", f"--starpullm-{option}", "huge")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --starpullm-{option}: {sentence}"])
    assert "huge" not in result.stdout.str()


def test_partitions_are_chosen_by_name_where_hwloc_has_other_cores(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests are named before it is asked."""
    pytester.makepyfile("def test_it(starpullm_configuration):\n    pass\n")
    monkeypatch.setenv("HWLOC_SYNTHETIC", "core:1000 pu:1")
    monkeypatch.setenv("HWLOC_THISSYSTEM", "1")  # so that only those exist that this machine has
    result = run(partition=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    sentence = "found all, tests were named for 1000 cores and hwloc has found * here, expected partitions by name"
    result.stderr.fnmatch_lines([f"ERROR: --starpullm-partition: {sentence}"])
    run("--collect-only", "-q", partition="1000x1").stdout.fnmatch_lines(["*test_it[[]1000x1-lws[]]"])


def test_a_newcomer_finds_markers_and_fixtures(run: Run) -> None:
    """``--markers`` and ``--fixtures`` have a sentence for each of ours."""
    markers = run("--markers", partition=None).stdout
    markers.fnmatch_lines_random(
        [f"@pytest.mark.starpullm_{name}: {text} (starpullm)" for name, text in FAMILIES.items()]
    )
    markers.no_re_match_line("@pytest.mark.(parity|throughput|golden)")
    fixtures = run("--fixtures", partition=None).stdout.str()
    for name in FIXTURES:
        assert re.search(rf"^{name}\b.* -- .*\n    \w", fixtures, re.MULTILINE), name


ALONE = """
from starpullm.checks.result import Outcome, Result


def fine(place):
    return Result(check="fine", outcome=Outcome.PASSED, sentence="as told", compared=1)


def test_it(starpullm_check):
    starpullm_check(fine)
"""
OTHERS = "benchmark cacheprovider hypothesispytest junitxml pytest_cov pytest_mpi randomly rerunfailures timeout xdist"


@pytest.mark.parametrize("blocked", [OTHERS.split(), ["terminal"]], ids=["plugins", "terminal"])
def test_without_the_other_plugins(run: Run, pytester: pytest.Pytester, blocked: list[str]) -> None:
    pytester.makepyfile(ALONE)
    result = run(*(f"-pno:{name}" for name in blocked), "--starpullm-report=report.json")
    assert result.ret == pytest.ExitCode.OK
    assert (pytester.path / "report.json").exists()


STRANGER = """
import pytest
from mpi4py import MPI


@pytest.mark.mpi
def test_one_rank():
    assert MPI.COMM_WORLD.Get_size() == 2


def test_every_rank():
    print("here")
"""


def test_a_stranger_s_run_on_ranks_is_its_own(run_ranks: Run, pytester: pytest.Pytester) -> None:
    """With pytest-mpi alone every rank prints and runs every test."""
    pytester.makepyfile(STRANGER)
    result = run_ranks("-s", over_ranks=False)
    text = result.stdout.str()
    assert [text.count(words) for words in ("test session starts", "here", "2 passed", "starpullm: ")] == [2, 2, 2, 0]


def test_tests_of_the_plugin_on_ranks_that_are_no_run(run_ranks: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ALONE)
    result = run_ranks(over_ranks=False)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --with-mpi: found 2 ranks and tests that use starpullm, expected *"])
