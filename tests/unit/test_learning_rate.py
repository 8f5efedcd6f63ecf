"""The learning rates of steps against llm.c's formulas, written out here."""

from __future__ import annotations

import math

import pytest

from starpullm.errors import InvalidArgumentError
from starpullm.training.learning_rate import LearningRateSchedule


def llmc_cosine(rate: float, warm_up: int, steps: int, step: int) -> float:
    """Step counts from 0; the final fraction is 0."""
    if step < warm_up:
        return rate * (step + 1) / warm_up
    decay_ratio = (step - warm_up) / (steps - warm_up)
    coefficient = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return coefficient * rate


@pytest.mark.parametrize(("warm_up", "steps"), [(0, 1), (0, 7), (3, 7), (7, 7)])
def test_cosine_is_that_of_llm_c(warm_up: int, steps: int) -> None:
    schedule = LearningRateSchedule("cosine", 1e-3, warm_up, steps)
    for step in range(1, steps + 1):
        assert schedule.rate(step) == pytest.approx(llmc_cosine(1e-3, warm_up, steps, step - 1), rel=1e-15)


def test_values() -> None:
    """The highest rate is reached in the last step of the warm-up, and stays or is halved half-way."""
    assert [LearningRateSchedule("constant", 0.8, 4, 9).rate(step) for step in (1, 2, 4, 5, 9)] == [
        0.2,
        0.4,
        0.8,
        0.8,
        0.8,
    ]
    cosine = LearningRateSchedule("cosine", 0.8, 4, 8)
    assert [cosine.rate(step) for step in (1, 4, 5)] == [0.2, 0.8, 0.8]
    assert cosine.rate(7) == pytest.approx(0.4)
    assert 0 < cosine.rate(8) < cosine.rate(7)
    assert LearningRateSchedule("constant", 3e-4, 0, 1).rate(1) == 3e-4


@pytest.mark.parametrize(
    ("kind", "warm_up", "sentence"),
    [
        ("linear", 0, 'schedule: found "linear", expected one of constant, cosine'),
        ("cosine", -1, "warm-up steps: found -1, expected 0 to 5, the number of steps"),
        ("constant", 6, "warm-up steps: found 6, expected 0 to 5, the number of steps"),
    ],
)
def test_refusals(kind: str, warm_up: int, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        LearningRateSchedule(kind, 1e-3, warm_up, 5)
    assert str(caught.value) == sentence
