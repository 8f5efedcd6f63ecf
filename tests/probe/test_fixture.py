"""The fixture by which any StarPU project tests its schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Kind
from starpullm.pytest_plugin.program import Program


def test_a_right_program_passes(scenarios: Path, starpullm_program: Callable[..., Program]) -> None:
    result = starpullm_program(scenarios, "commute").probe(runs=1, workers=2)
    assert (result.outcome, result.num_tasks, result.runs) == (Outcome.PASSED, 13, 3)


def test_a_wrong_one_fails_with_the_task(scenarios: Path, starpullm_program: Callable[..., Program]) -> None:
    program = starpullm_program(scenarios, "writes_what_it_reads")
    with pytest.raises(pytest.fail.Exception, match=r"write_second .* declares to read handle 4"):
        program.probe(runs=1)
    assert [finding.kind for finding in program.probe(runs=1, same=False).findings] == [Kind.READ_WRITTEN]
