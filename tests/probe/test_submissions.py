"""How tasks come to StarPU: what is submitted again, in which order, and what the probe doesn't see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.files.probe_log import read_probe_log

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
