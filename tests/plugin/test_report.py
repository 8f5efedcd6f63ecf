"""The report of ``--starpullm-report DIR``: of a run that fails, and of one that is killed; test_ranks.py has ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from starpullm.report.verdict import verdict_of

from ..report.report_json import read_report
from .conftest import Run
from .test_messages import PARITY, tampered

__all__ = ["tampered"]  # a fixture


def read(folder: Path) -> tuple[dict[str, Any], str]:
    """The document of a report and its page."""
    document = read_report(folder / "report.json")
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "report.json"]
    return document, (folder / "index.html").read_text()


def left_out(document: dict[str, Any]) -> dict[str, list[str]]:
    return {entry["what"]: entry["tests"] for entry in document["not_checked"]}


def test_report_of_a_failure(run: Run, tampered: Path, pytester: pytest.Pytester) -> None:
    options = ("--starpullm-sub-batches", "1", "--starpullm-records", f"tiny,{tampered}")
    result = run(*PARITY, *options, "--starpullm-report", "out", partition="2x1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"report: {pytester.path}/out/index.html"])
    document, page = read(pytester.path / "out")
    assert (document["state"], document["exit_status"]) == ("ended", 1)
    assert verdict_of(document).kind == "failed"
    assert document["selection"]["partitions"] == ["2x1"]
    assert {"several ranks", "partitions of more than 2 cores", "partition 1x2"} <= set(left_out(document))
    assert any("growth_over_steps" in test for test in left_out(document)["tests of memory"])
    [anchor] = re.findall(r'<a href="#([^"]+)">step 1, activations/atty\[0\]</a>', page)
    failure = page.partition(f'id="{anchor}"')[2].partition("</article>")[0]
    assert "attention_forward (step 1, sub-batch 0, layer 0) on worker" in failure


KILLED = """
import os
import signal
import time

import pytest


def test_before(starpullm_validation):
    time.sleep(3)  # longer than a report stays as it is


def test_that_kills(starpullm_validation):
    os.kill(os.getpid(), signal.SIGKILL)


def test_after(starpullm_validation):
    pass
"""


def test_report_of_a_run_that_was_killed(run_apart: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(KILLED)
    result = run_apart("--starpullm-report", "out")
    assert result.ret == -9
    document, page = read(pytester.path / "out")
    assert (document["state"], document["exit_status"]) == ("running", None)
    assert [name.rpartition("::")[2] for name in document["running"]] == ["test_that_kills"]
    endings = [(test["outcome"], test["ending"]) for test in document["tests"]]
    assert endings == [("passed", "passed"), ("unfinished", "running"), ("unfinished", "not run")]
    assert "Not finished" in page


def test_report_of_a_run_that_was_stopped(run: Run, tampered: Path, pytester: pytest.Pytester) -> None:
    """A test that it didn't reach is one of its claim."""
    options = ("--starpullm-sub-batches", "1", "--starpullm-records", f"{tampered},tiny", "-x")
    result = run(*PARITY, *options, "--starpullm-report", "out")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    result.stdout.fnmatch_lines(["parity *1x1 lws *1 failed, 1 unfinished (1 not run) *"])
    document, page = read(pytester.path / "out")
    assert document["stopped"] == "stopping after 1 failures"
    assert "0 passed, 1 failed, 1 not run (parity)" in page
    assert "– not run</td>" in page  # the cell of its run


KILLS = """
import os
import signal

import pytest

from starpullm.pytest_plugin import validation_of


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if "tiles3" in item.name:
        for child in validation_of(item.config).pool._children.values():
            os.kill(child.pids[0], signal.SIGKILL)
"""


def test_report_of_a_lost_run_of_the_suite(run: Run, pytester: pytest.Pytester) -> None:
    """Of two runs of a placement one has passed: neither their cell nor their claim is green."""
    pytester.makepyfile(kills=KILLS)
    pytester.syspathinsert()
    cases = ("--starpullm-records", "tiny", "--starpullm-sub-batches", "2", "-k", "parity-tiny-2-ordered and not fused")
    result = run("--pyargs", "starpullm.suite", "-p", "kills", *cases, "--starpullm-report", "out")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["parity *1x1 lws *1 passed, 1 failed (1 lost its process) *"])
    _, page = read(pytester.path / "out")
    assert "✗ every tensor of every step has the bits of llm.c: 570 tensors; 1 passed, 0 failed, 1 lost its " in page
    [cell] = re.findall(r'<td class="(\w+)"[^>]*>[^<]*<a href="#failure-\d+">lost its process</a>', page)
    assert cell == "failed"
    assert "570 equal" not in page
    sentence = "parity of tiny-2-ordered-tiles3 on 1x1 lws: no result: the process was ended by SIGKILL"
    assert re.search(rf">✗ parity on 1x1 lws</h3>\n<p>{sentence.rpartition(': ')[2]}", page)
    result.stdout.fnmatch_lines([f"{sentence} (*"])


UNFINISHED = """
import os
import signal
import time

import pytest

from starpullm.checks.result import Outcome, Result


def energy(place):
    return Result(check="energy", outcome=Outcome.PASSED, compared=3, unit="atoms")


@pytest.mark.parametrize("number", range(3))
def test_interrupted(starpullm_check, number):
    starpullm_check(energy)
    if number == 1:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)
"""


def test_report_of_a_run_that_was_interrupted(run_apart: Run, pytester: pytest.Pytester) -> None:
    """Ctrl-C in the second of three tests: the third would have made the check too."""
    pytester.makepyfile(UNFINISHED)
    result = run_apart("--starpullm-report", "out")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["other *1x1 lws *1 passed, 2 unfinished (1 interrupted, 1 not run) *"])
    document, page = read(pytester.path / "out")
    assert verdict_of(document) == ("unfinished", "Stopped early", verdict_of(document).sentence)
    assert "– energy: 3 atoms; 1 passed, 0 failed, 1 interrupted, 1 not run" in page


LOST = """
import os
import signal


def test_first(starpullm_validation):
    pass


def test_that_kills(starpullm_validation):
    os.kill(os.getpid(), signal.SIGKILL)


def test_after(starpullm_validation):
    pass
"""


def test_report_of_a_lost_worker(run_apart: Run, pytester: pytest.Pytester) -> None:
    """The test that a worker of pytest-xdist was lost in has failed; those that no worker is left for have not run."""
    pytester.makepyfile(LOST)
    result = run_apart("-p", "xdist", "-n", "1", "--max-worker-restart", "0", "--starpullm-report", "out")
    result.stdout.fnmatch_lines(
        ["other *1 passed (1 by own assertions), 1 failed (1 lost its worker), 1 unfinished (1 not run) *"]
    )
    document, _ = read(pytester.path / "out")
    endings = {test["test"].rpartition("::")[2]: test["ending"] for test in document["tests"]}
    assert endings == {"test_first": "passed", "test_that_kills": "lost its worker", "test_after": "not run"}


def test_a_report_that_nothing_can_make(run_apart: Run, pytester: pytest.Pytester) -> None:
    """Without a package that makes the page, the run is refused before it begins."""
    pytester.makeconftest("import sys\n\nsys.modules['jinja2'] = None\n")
    test = pytester.makepyfile("def test_it(starpullm_validation):\n    pass\n")
    result = run_apart(test.name, "--starpullm-report", "out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --starpullm-report: a report needs jinja2, *pip install 'starpullm[[]report[]]'"]
    )
    assert not (pytester.path / "out").exists()


OPENS = """
import sys

opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)


def pytest_runtest_logstart(nodeid):
    print(f"\\nopened {sum('/golden/' in path for path in opened)}")
"""


def test_records_are_not_read_at_each_test(run_apart: Run, pytester: pytest.Pytester) -> None:
    """While the report is renewed; what is not checked doesn't change."""
    pytester.makeconftest(OPENS)
    pytester.makepyfile(
        "import pytest\n\n\n@pytest.mark.parametrize('number', range(4))\n"
        "def test_it(starpullm_golden, number):\n    pass\n"
    )
    result = run_apart("-s", "--starpullm-records=tiny", "--starpullm-report=report")
    result.assert_outcomes(passed=4)
    counts = [int(line.split()[1]) for line in result.outlines if line.startswith("opened ")]
    assert len(counts) == 4
    assert len(set(counts[1:])) == 1


OWN_CHECKS = """
import pytest

from starpullm.checks.result import Outcome, Result


def energy(place):
    return Result(check="parity", outcome=Outcome.PASSED, sentence="fine", compared=3, unit="atoms")


@pytest.mark.starpullm_parity
def test_energy(starpullm_check):
    starpullm_check(energy)
"""


def test_report_of_an_own_check(run: Run, pytester: pytest.Pytester) -> None:
    """It has the unit of the check, also if the check is called like one of the package."""
    pytester.makepyfile(OWN_CHECKS)
    run("--starpullm-report", "out", "--starpullm-records", "tiny").assert_outcomes(passed=1)
    _, page = read(pytester.path / "out")
    assert "✓ parity: 3 atoms; 1 passed, 0 failed" in page


def test_a_page_that_cannot_be_made_costs_no_result(run_apart: Run, pytester: pytest.Pytester) -> None:
    """The run goes on to its end, and its data are written."""
    pytester.makeconftest("import sys\n\nsys.modules['starpullm.report.workers'] = None\n")
    pytester.makepyfile(
        "def test_it(starpullm_validation):\n    pass\n\n\ndef test_more(starpullm_validation):\n    pass\n"
    )
    result = run_apart("--starpullm-report", "out")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        ["--starpullm-report: */out/index.html: can't be made of report.json: ModuleNotFoundError: *"]
    )
    document = read_report(pytester.path / "out" / "report.json")
    assert [test["outcome"] for test in document["tests"]] == ["passed", "passed"]
