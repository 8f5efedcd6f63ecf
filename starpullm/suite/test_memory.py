"""Memory doesn't grow with the number of steps or of trainers. One record is enough: a leak doesn't depend on it."""

from __future__ import annotations

import pytest

from starpullm.checks import lifetimes
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_memory


@pytest.mark.parametrize("growth", [lifetimes.step_growth, lifetimes.trainer_growth])
def test_nothing_grows(starpullm_check: Checker, starpullm_validation: Validation, growth: lifetimes.Growth) -> None:
    """The process is one in which allocations are counted."""
    starpullm_check(
        growth,
        record="tiny",
        sub_batches=2,
        reduction="ordered",
        seed=starpullm_validation.seed,
        counts_allocations=True,
    )
