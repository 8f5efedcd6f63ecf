"""How tasks come to StarPU: what is submitted again, in which order, and what the probe doesn't see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.files.probe_log import read_probe_log
from starpullm.probe.findings import Kind

from .conftest import Compile, probe


@pytest.fixture(scope="module")
def program(compiled: Compile) -> str:
    return str(compiled("submissions"))


def test_an_integer_as_the_pointer_to_arguments(program: str, tmp_path: Path) -> None:
    """It isn't followed, but recorded."""
    result = probe([program, "integers"], runs=1, keep=tmp_path / "logs")
    assert (result.outcome, result.num_tasks) == (Outcome.PASSED, 8), result.lines()
    (log,) = (tmp_path / "logs" / "reference-schedule").glob("probe-*")
    assert len(set(read_probe_log(log).tasks["arguments"][:8].tolist()) - {0}) == 8


def test_all_implementations_run(program: str) -> None:
    result = probe([program, "implementations"], runs=1)
    assert (result.outcome, result.unseen) == (Outcome.PASSED, ()), result.lines()


def test_a_lie_of_the_second_implementation(program: str) -> None:
    result = probe([program, "lies_in_second_implementation"], runs=1)
    assert (Kind.READ_WRITTEN, "double") in {(one.kind, one.codelet) for one in result.findings}, result.lines()


def test_implementations_that_differ(program: str) -> None:
    (finding,) = probe([program, "second_implementation_differs"], runs=1).findings
    assert (finding.kind, finding.codelet) == (Kind.OUTPUT_DIFFERS, "double")
    assert "equal: it ran by its codelet's implementation " in finding.sentence


def test_an_implementation_that_never_ran_is_said(program: str) -> None:
    result = probe([program, "second_implementation_never_runs"], runs=1)
    assert (result.outcome, result.unseen) == (Outcome.PASSED, ("1 implementation never ran, of double",))
    assert result.sentence.startswith("same in what was seen: "), result.lines()
