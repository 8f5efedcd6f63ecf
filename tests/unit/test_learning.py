"""The check that a loss falls fails for a loss that stands still, rises or is not a number."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starpullm.checks import references
from starpullm.checks.cases import Case
from starpullm.checks.check_context import CheckContext
from starpullm.checks.learning import LossFalls
from starpullm.checks.result import Outcome

from .plain_trainer import PlainTrainer, runtime


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (None, Outcome.PASSED),
        (lambda step: 5.0, Outcome.FAILED),
        (lambda step: 5.0 + step, Outcome.FAILED),
        (lambda step: 5.0 - step if step < 20 else np.nan, Outcome.FAILED),
    ],
)
def test_a_loss_must_fall(change: Any, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(trainer: PlainTrainer) -> None:
        if change is not None:
            trainer.loss = np.float32(change(trainer.model.steps))

    monkeypatch.setattr(references, "Trainer", partial(PlainTrainer, fault=fault))
    result = LossFalls().run(CheckContext(runtime(), tmp_path), Case("tiny"))
    assert (result.outcome, result.compared, result.count) == (outcome, 20, outcome is Outcome.FAILED)
