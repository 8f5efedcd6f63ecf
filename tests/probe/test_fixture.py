"""The fixture by which any StarPU project tests its schedules."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Kind
from starpullm.pytest_plugin.fixtures import Program

from .conftest import Compile


def test_a_right_program_passes(scenarios: Path, starpullm_program: Callable[..., Program]) -> None:
    result = starpullm_program(scenarios, "commute").probe(runs=1, workers=2)
    assert (result.outcome, result.num_tasks, result.runs) == (Outcome.PASSED, 13, 4)


def test_a_wrong_one_fails_with_the_task(scenarios: Path, starpullm_program: Callable[..., Program]) -> None:
    program = starpullm_program(scenarios, "writes_what_it_reads")
    with pytest.raises(pytest.fail.Exception, match=r"write_second .* declares to read handle 4"):
        program.probe(runs=1)
    assert [finding.kind for finding in program.probe(runs=1, same=False).findings] == [Kind.READ_WRITTEN]


def test_the_example_of_the_page(
    compiled: Compile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    starpullm_program: Callable[..., Program],
) -> None:
    """The Python block of probe.md, with the page's program, whose tasks don't declare what they read."""
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    shutil.copy(compiled("heat"), tmp_path / "heat")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pytest.fail.Exception, match=r"update \(task \d+\) left other contents"):
        names["test_any_schedule"](starpullm_program)
