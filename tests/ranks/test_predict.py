"""The plan of several ranks is what they submit: tasks, ranks, priorities, accesses and transfers."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.data.generator import generate_checkpoint
from starpullm.data.models import MODELS
from starpullm.predict.recorded_steps import record_steps
from starpullm.speed.workload import Workload

TIME_LIMIT = 100.0


@pytest.mark.parametrize(("ranks", "reduction"), [(2, "ordered"), (3, "tree")])
def test_the_plan_is_what_ranks_submit(tmp_path: Path, ranks: int, reduction: str) -> None:
    """Recording refuses other tasks; a step's time is finite, and so is what the model makes of its own durations."""
    generate_checkpoint(tmp_path / "model.bin", MODELS["tiny"], 1)
    workload = Workload(
        model="tiny",
        batch_size=4 * ranks,
        seq_len=8,
        partition="1x1",
        scheduler="lws",
        sub_batches=2,
        reduction=reduction,
        ranks=ranks,
        iterations=2,
        warm_up=2,
    )
    recorded = record_steps(workload, tmp_path / "model.bin", TIME_LIMIT)
    assert 0 < recorded.model_seconds < 10 * recorded.measured_seconds
