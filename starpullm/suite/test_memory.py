"""Memory doesn't grow with the number of steps or of trainers. One record is enough: a leak doesn't depend on it."""

from __future__ import annotations

import pytest

from starpullm.checks import lifetimes
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_memory


def test_runtimes_leave_nothing(request: pytest.FixtureRequest, starpullm_validation: Validation) -> None:
    """Runtimes are started and closed many times."""
    Checker(starpullm_validation, request.node, None).alone(lifetimes.runtime_growth, counts_allocations=True)


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
