"""Without a defect no check raises an alarm, however often it is repeated.

Collected by pytest; ``--mutation-repetitions`` says how often.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from starpullm._library import find_library

from .laboratory import CHECKS, REPEATED, Catch, Laboratory
from .table import Alarms, Table

pytestmark = [pytest.mark.mutation, pytest.mark.timeout(0)]

QUICK_PART = "in one process"
SUITE_REPETITIONS = 5
SUITE_SECONDS = 600.0


@pytest.mark.parametrize("build", ["with defects, none chosen", "installed"])
@pytest.mark.parametrize("part", [QUICK_PART, "over ranks, and of memory"])
def test_repeated_checks(
    part: str, build: str, request: pytest.FixtureRequest, defective_library: Path, table: Table, tmp_path: Path
) -> None:
    """The checks that start many processes or many steps only in every tenth repetition."""
    library = find_library() if build == "installed" else defective_library
    repetitions = request.config.getoption("--mutation-repetitions")
    names = REPEATED
    if part != QUICK_PART:
        names, repetitions = tuple(name for name in CHECKS if name not in REPEATED), max(repetitions // 10, 1)
    alarms: list[Catch] = []
    start = time.monotonic()
    with Laboratory(library, None, tmp_path, only_tiny=True) as laboratory:
        for _ in range(repetitions):
            for name in names:
                alarms += CHECKS[name](laboratory, name)
    table.add(
        Alarms(
            f"checks of `tiny` {part}, library {build}",
            repetitions,
            repetitions * len(names),
            len(alarms),
            time.monotonic() - start,
        )
    )
    assert alarms == []


def test_repeated_suite(table: Table, tmp_path: Path) -> None:
    """The whole suite on the installed library."""
    alarms, checks, start = 0, 0, time.monotonic()
    for repetition in range(SUITE_REPETITIONS):
        report = tmp_path / f"{repetition}.json"
        command = ["-m", "pytest", "--pyargs", "starpullm.suite", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [sys.executable, *command, "--starpullm-report", str(report)],
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
            cwd=tmp_path,
        )
        tests = json.loads(report.read_text())["tests"]
        checks += len(tests)
        alarms += sum(test["outcome"] == "failed" for test in tests)
    table.add(Alarms("`pytest --pyargs starpullm.suite`", SUITE_REPETITIONS, checks, alarms, time.monotonic() - start))
    assert alarms == 0
