"""docs/suite.md: its example runs as it stands, and it names every option and fixture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from starpullm.pytest_plugin import FIXTURES

from .conftest import Run

PAGE = Path(__file__).parents[2] / "docs" / "suite.md"


def test_example(run_apart: Run, pytester: pytest.Pytester) -> None:
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    pytester.makepyfile(example)
    result = run_apart("--starpullm-records", "tiny", partition="2x1")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["dependencies *2x1 lws *1 passed*", "other *2x1 lws *3 passed*"])


def test_every_option_and_fixture_is_named(run: Run) -> None:
    page = PAGE.read_text("utf-8")
    text = run("--help", partition=None).stdout.str()
    options = set(re.findall(r"--starpullm-[a-z-]+", text))
    assert len(options) > 10
    in_the_ini_file = set(re.findall(r"^  (starpullm_[a-z_]+) \(", text, re.MULTILINE))
    assert in_the_ini_file == {option[2:].replace("-", "_") for option in options} | {"starpullm_benchmark"}
    assert {option for option in options if f"`{option}" not in page} == set()
    assert {fixture for fixture in FIXTURES if f"`{fixture}`" not in page} == set()
