"""Tests that wait until another process has stopped using the machine."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .conftest import Run

HOLD = """
import sys, time
from starpullm.processes.lock import machine_lock
with machine_lock():
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""
WAITS = """
import pytest
from starpullm.checks.result import Outcome, Result


def fine(place):
    return Result(check="fine", outcome=Outcome.PASSED, sentence="as told", compared=1)


@pytest.mark.timeout(4)
def test_waits(starpullm_check):
    starpullm_check(fine)
"""


@pytest.mark.parametrize("limit", [None, "1"])
def test_the_wait_for_the_machine(run_apart: Run, pytester: pytest.Pytester, limit: str | None) -> None:
    """It is told, has a limit of its own, and is neither the test's time nor pytest-timeout's, which is shorter."""
    pytester.makepyfile(WAITS)
    with subprocess.Popen([sys.executable, "-c", HOLD, "6"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        options = ("--starpullm-wait-limit", limit) if limit else ()
        result = run_apart("--junitxml=junit.xml", *options)
        holder.kill()
    result.stdout.fnmatch_lines([f"starpullm: waiting for process {holder.pid}, *python* -c *", "waited * s for *"])
    if limit:
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines([f"*/lock: process {holder.pid}, * still uses the machine after 1 s, expected *"])
    else:
        result.assert_outcomes(passed=1)
        [seconds] = re.findall(r'<testcase .* time="([0-9.]+)"', (pytester.path / "junit.xml").read_text())
        assert float(seconds) < 4
