"""What traces of real runs say: every task of every step, and who updates which parameter."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.processes.endings import Completed

from . import training_programs as programs
from .test_training import model, run


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trace_of_many_steps(tmp_path: Path, ranks: int) -> None:
    four_cores = {"HWLOC_SYNTHETIC": "numa:1 core:4 pu:1"}
    outcome = run(programs.long_traces, model(tmp_path), ranks=ranks, environment=four_cores)
    assert isinstance(outcome, Completed), outcome


@pytest.mark.parametrize("ranks", [2, 3])
def test_owners_of_parameters(tmp_path: Path, ranks: int) -> None:
    outcome = run(programs.owners_of_parameters, model(tmp_path), ranks=ranks)
    assert isinstance(outcome, Completed), outcome
