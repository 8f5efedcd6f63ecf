"""Without a defect no check raises an alarm, however often it is repeated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from starpullm.binding.library import find_library

from ..from_tests import UNUSED, load_plugin
from .laboratory import CHECKS, FOUND, REPEATED, SECONDS, Catch, Laboratory
from .mutants import Builder

pytestmark = [pytest.mark.mutation, pytest.mark.timeout(0)]

ONE_PROCESS = "in one process"
SUITE_REPETITIONS = 5
SUITE_SECONDS = 600.0
Record = Callable[[str, object], None]
OPTIONS = (*load_plugin(), *UNUSED, "-p", "no:cacheprovider", "-q")


@pytest.mark.parametrize("library", ["built for the defects", "installed"])
@pytest.mark.parametrize("part", [ONE_PROCESS, "over ranks, and of memory"])
def test_repeated_checks(
    part: str, library: str, request: pytest.FixtureRequest, builder: Builder, tmp_path: Path, record_property: Record
) -> None:
    """The checks that start many processes or many steps only in every tenth repetition."""
    path = find_library() if library == "installed" else builder.library
    repetitions = request.config.getoption("--mutation-repetitions")
    names = REPEATED
    if part != ONE_PROCESS:
        names, repetitions = tuple(name for name in CHECKS if name not in REPEATED), max(repetitions // 10, 1)
    alarms: list[Catch] = []
    start = time.monotonic()
    with Laboratory(path, tmp_path, only_tiny=True) as laboratory:
        for _ in range(repetitions):
            for name in names:
                alarms += CHECKS[name](laboratory, name)
    record_property(FOUND, f"{part}, library {library}: {repetitions * len(names)} checks, {len(alarms)} false alarms")
    record_property(SECONDS, time.monotonic() - start)
    assert alarms == []


@pytest.mark.parametrize("repetition", range(1, SUITE_REPETITIONS + 1))
@pytest.mark.parametrize("families", ["parity", "dependencies", "reduction or memory"])
def test_repeated_suite(families: str, repetition: int, tmp_path: Path, record_property: Record) -> None:
    """The whole suite on the installed library."""
    report = tmp_path / "report.json"
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--pyargs", "starpullm.suite"]
    run = subprocess.run(
        [*command, "-m", re.sub(r"\b(?!or\b)(\w+)", r"starpullm_\1", families), "--starpullm-report", str(report)],
        capture_output=True,
        text=True,
        timeout=SUITE_SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert report.exists(), run.stdout + run.stderr
    tests = json.loads(report.read_text())["tests"]
    failed = [test["test"] for test in tests if test["outcome"] == "failed"]
    record_property(FOUND, f"suite, {families}: {len(tests)} checks, {len(failed)} false alarms")
    record_property(SECONDS, time.monotonic() - start)
    assert tests
    assert failed == []
