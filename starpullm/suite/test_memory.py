"""Memory doesn't grow with the number of steps, or of trainers.

Run by ``pytest --pyargs starpullm.suite``. One record: what leaks, leaks with any model.
"""

from __future__ import annotations

import pytest

from starpullm.checks import lifetimes
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.memory


@pytest.mark.parametrize("growth", [lifetimes.step_growth, lifetimes.trainer_growth])
def test_nothing_grows(starpullm_check: Checker, starpullm_validation: Validation, growth: lifetimes.Growth) -> None:
    """In a fresh process: memory that others have freed would hide a leak."""
    starpullm_check(
        growth, record="tiny", sub_batches=2, reduction="ordered", seed=starpullm_validation.seed, fresh=True
    )
