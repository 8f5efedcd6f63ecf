"""Memory doesn't grow with steps, trainers and runtimes. One record is enough: no leak depends on it."""

from __future__ import annotations

import pytest

from starpullm.checks import lifetimes
from starpullm.checks.cases import find_record
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_memory

_RECORDS = ("tiny", "odd", "small", "deep")


def _case(ranks: int, seed: int) -> dict[str, object]:
    """Return the arguments of a check: a record whose batch the ranks divide, and two sub-batches where that works."""
    for record in _RECORDS:
        whole = find_record(record).batch_size
        if whole % ranks == 0:
            sub_batches = 2 if whole // ranks % 2 == 0 else 1
            options = {"record": record, "sub_batches": sub_batches, "reduction": "ordered", "seed": seed}
            return {**options, "counts_allocations": True}
    pytest.skip(f"memory: {ranks} ranks divide the batch of none of the records {', '.join(_RECORDS)}")


def test_runtimes_leave_nothing(request: pytest.FixtureRequest, starpullm_validation: Validation) -> None:
    """Runtimes are started and closed many times."""
    Checker(starpullm_validation, request.node, None).alone(lifetimes.runtime_growth, counts_allocations=True)


@pytest.mark.starpullm_over_ranks
def test_nothing_grows(
    request: pytest.FixtureRequest, starpullm_check: Checker, starpullm_validation: Validation
) -> None:
    """With the number of steps; the process is one in which allocations are counted."""
    starpullm_check(
        lifetimes.step_growth, **_case(starpullm_validation.ranks_of(request.node), starpullm_validation.seed)
    )


def test_trainers_leave_nothing(check_on_one_worker: Checker, starpullm_validation: Validation) -> None:
    """Trainers are closed while they work."""
    check_on_one_worker(lifetimes.trainer_growth, **_case(1, starpullm_validation.seed))
