"""Comparisons with other programs: their numbers, and what can't be compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.speed.against import LOSS_TOLERANCE, Spread, check_losses, compare

from .workloads import workload


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)


def test_losses_that_agree() -> None:
    losses = {"strict": [11.0, 10.5], "blas": [11.0 + LOSS_TOLERANCE / 2, 10.5], "torch eager": [11.0, 10.5 - 1e-5]}
    assert check_losses(losses) == pytest.approx(LOSS_TOLERANCE / 2)


@pytest.mark.parametrize("second", [10.5 + 2 * LOSS_TOLERANCE, 10.5 - 2 * LOSS_TOLERANCE, math.nan, math.inf])
def test_losses_that_do_not(second: float) -> None:
    """A variant that computes something else after the first forward pass."""
    with pytest.raises(
        RuntimeFailureError, match=r"^torch eager: step 1: its loss is .*, expected the strict run's 10\.5"
    ):
        check_losses({"strict": [11.0, 10.5], "torch eager": [11.0, second]})


@pytest.mark.parametrize(
    "changes",
    [{"ranks": 2}, {"matmul": "blas"}],
)
def test_what_cannot_be_compared(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a strict configuration of one rank"):
        compare(workload(**changes), Path("none.bin"), [], 1.0, progress=lambda: None)
