"""The plugin in a project that knows nothing of it, or is only beginning to use it."""

from __future__ import annotations

from pathlib import Path

import pytest

import starpullm
from starpullm.binding.library import find_library

from .conftest import Run

OWN_OPTIONS = """
def pytest_addoption(parser):
    for name in ("--benchmark", "--with-mpi"):
        parser.addoption(name, action="store_true")
"""
USES_THEM = """
def test_own(pytestconfig):
    assert pytestconfig.getoption("benchmark") and pytestconfig.getoption("with_mpi")
"""


@pytest.mark.parametrize("suite", [(), ("--pyargs", "starpullm.suite", "test_own.py")], ids=["own", "with the suite"])
def test_options_of_a_project_stay_its_own(run: Run, pytester: pytest.Pytester, suite: tuple[str, ...]) -> None:
    """Also beside the suite, which knows both by these names where nobody else does."""
    pytester.makeconftest(OWN_OPTIONS)
    pytester.makepyfile(test_own=USES_THEM)
    site = Path(starpullm.__file__).parent  # without the conftest.py of a checkout that the package is installed in
    result = run("-p", "no:pytest_mpi", "--benchmark", "--with-mpi", "-k", "test_own", f"--confcutdir={site}", *suite)
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes().get("deselected", 0))


def test_the_suite_knows_short_names(run: Run) -> None:
    baseline = ("--starpullm-baseline-library", str(find_library()))
    suite = ("--pyargs", "starpullm.suite", "--starpullm-records", "tiny", *baseline)
    result = run(*suite, "--benchmark", "--with-mpi", "-p", "no:pytest_mpi", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*test_no_slower_than_the_baseline*"])
    assert run("--benchmark").ret == pytest.ExitCode.USAGE_ERROR


def test_the_suite_on_ranks_without_pytest_mpi(run_ranks: Run) -> None:
    """`--with-mpi` is understood before pytest knows it; one rank prints."""
    suite = ("--pyargs", "starpullm.suite", "--starpullm-records", "tiny", "--starpullm-partition", "1x1")
    result = run_ranks("-p", "no:pytest_mpi", *suite, "--collect-only", "-q", over_ranks=False)
    assert result.ret == pytest.ExitCode.OK
    assert result.stdout.str().count("tests collected") == 1


NO_LIBRARY = """
import pytest


@pytest.mark.starpullm_parity
def test_marked(starpullm_golden):
    assert starpullm_golden.batch_size


def test_check(starpullm_check):
    raise AssertionError("not reached")


def test_runtime(starpullm_runtime):
    raise AssertionError("not reached")


def test_other():
    pass
"""


def test_without_a_library_everything_else_runs(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header says so, and a fixture that needs the library fails with one sentence."""
    pytester.makepyfile(NO_LIBRARY)
    monkeypatch.setenv("STARPULLM_LIB", str(pytester.path / "none.so"))
    result = run("-p", "no:randomly", "--starpullm-records=tiny", "--starpullm-report=report.json")
    result.assert_outcomes(passed=2, errors=2)
    sentence = "this machine can't be inspected: */none.so: no such file, expected *"
    result.stdout.fnmatch_lines([f"starpullm: unknown: {sentence}", "other *unknown *2 failed *", f"{sentence}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result = run("-k", "other", "--starpullm-records=tiny")
    result.assert_outcomes(passed=1, deselected=3)
    assert "starpullm:" not in result.stdout.str()
    assert run("--pyargs", "starpullm.suite").ret == pytest.ExitCode.USAGE_ERROR


NOTHING = """
import sys


def refuse(event, arguments):
    starts = event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")
    if starts or (event == "ctypes.dlopen" and "starpu" in str(arguments[0])):
        raise AssertionError(event, arguments)


sys.addaudithook(refuse)
"""
COLLECTED = """
import pytest


@pytest.mark.starpullm_parity
def test_marked():
    pass


def test_configuration(starpullm_configuration):
    pass


def test_check(starpullm_check, starpullm_golden):
    pass


@pytest.mark.starpullm_over_ranks
def test_runtime(starpullm_runtime):
    pass


def test_other():
    pass
"""


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        (("--collect-only", "--starpullm-strict", "--starpullm-report=report.json"), {}),
        (("-k", "other"), {"passed": 1}),
        (("--pyargs", "starpullm.suite", "--collect-only", "--starpullm-schedulers=lws"), {}),
    ],
    ids=["collect-only", "other", "suite"],
)
def test_nothing_is_started_to_collect_tests(
    run_apart: Run, pytester: pytest.Pytester, options: tuple[str, ...], outcomes: dict[str, int]
) -> None:
    """No process, and the library isn't loaded (pytest-benchmark starts git)."""
    pytester.makepyfile(test_it=COLLECTED, nothing=NOTHING)
    result = run_apart(*"-p nothing -p no:benchmark --starpullm-records=tiny".split(), *options, partition=None)
    assert result.ret == pytest.ExitCode.OK, result.outlines
    result.assert_outcomes(**outcomes, deselected=result.parseoutcomes().get("deselected", 0))
    assert "[unknown]" not in result.stdout.str()


COMPARES_NOTHING = """
import numpy as np
import pytest


@pytest.mark.starpullm_parity
def test_marked():
    pass


def test_asks(starpullm_check):
    pass


@pytest.mark.starpullm_parity
def test_own(starpullm_golden):
    assert starpullm_golden.batch_size


def nothing(place):
    pass


def forgets_its_result(place):
    len([place])


def asserts(place, number):
    assert place.runtime.ranks == 1
    assert number + 1 == 4, "more"


def holds(place):
    assert place
    assert place.runtime


def numpy_asserts(place):
    np.testing.assert_array_equal([1], [1])


@pytest.mark.parametrize("check", [nothing, forgets_its_result])
def test_returns_nothing(starpullm_check, check):
    starpullm_check(check)


def test_shows_values(starpullm_check):
    starpullm_check(asserts, number=4)


@pytest.mark.parametrize("check", [holds, numpy_asserts])
def test_holds(starpullm_check, check):
    starpullm_check(check)
"""


def test_a_test_that_compares_nothing_fails(run: Run, pytester: pytest.Pytester) -> None:
    """What it has compared is counted: assert statements too, whose values a failure shows."""
    pytester.makepyfile(COMPARES_NOTHING)
    result = run("--junitxml=junit.xml")
    result.assert_outcomes(passed=6, failed=5)
    result.stdout.fnmatch_lines(["parity *4 passed (4 by own assertions), 1 failed *"])
    text = result.stdout.str()
    assert text.count("the test has compared nothing that starpullm knows of, expected a call of starpullm_check") >= 2
    returned = "on 1x1 lws: no result: it returned nothing and asserted nothing, expected a result or an assertion"
    result.stdout.fnmatch_lines([f"nothing of test_* {returned}", f"forgets_its_result of test_* {returned}"])
    result.stdout.fnmatch_lines(
        [
            "asserts of test_* on 1x1 lws: failed: more",
            "  assert (4 + 1) == 4",
            "*in asserts: assert number + 1 == 4, *more*",
        ]
    )
    junit = (pytester.path / "junit.xml").read_text()
    assert '<property name="starpullm.holds.compared" value="2" />' in junit
    assert '<property name="starpullm.numpy_asserts.compared" value="1" />' in junit


def test_one_placement_has_nothing_to_compare_with(run: Run) -> None:
    """A run on one partition, as docs/start.md has it, compares no two placements."""
    options = ("--starpullm-records", "tiny", "-k", "bit_stability", "--starpullm-report", "report.json")
    result = run("--pyargs", "starpullm.suite", *options, "--starpullm-strict")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["left out: bit stability of tiny-*-tree: one placement has nothing to compare with"])
    result = run("--pyargs", "starpullm.suite", "--starpullm-sub-batches", "1", *options)
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "passed" not in result.parseoutcomes()
