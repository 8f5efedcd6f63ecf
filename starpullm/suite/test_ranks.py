"""All ranks report the same; collected only over ranks (``mpirun -n 4 pytest --with-mpi --pyargs starpullm.suite``)."""

from __future__ import annotations

import pytest

from starpullm.checks import runs
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = [pytest.mark.starpullm_reduction, pytest.mark.starpullm_over_ranks]


def test_losses_are_the_same_on_all_ranks(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """Each rank computes the mean loss of every step from the losses of all ranks."""
    starpullm_check(runs.losses_of_ranks, **case._asdict(), seed=starpullm_validation.seed)
