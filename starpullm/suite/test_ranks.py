"""All ranks report the same, and send what they must.

Collected only over ranks (``mpirun -n 4 pytest --with-mpi --pyargs starpullm.suite``).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from starpullm.checks import runs
from starpullm.checks.place import Workplace
from starpullm.checks.result import CheckResult
from starpullm.checks.transfers import transfers_of_ordered, transfers_of_tree
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = pytest.mark.starpullm_over_ranks


@pytest.mark.starpullm_reduction
def test_losses_are_the_same_on_all_ranks(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """Each rank computes the mean loss of every step from the losses of all ranks."""
    starpullm_check(runs.losses_of_ranks, **case._asdict(), seed=starpullm_validation.seed)


@pytest.mark.starpullm_dependencies
@pytest.mark.parametrize("check", [transfers_of_ordered, transfers_of_tree], ids=lambda check: check.__name__)
def test_data_crosses_ranks_as_required(
    request: pytest.FixtureRequest, starpullm_validation: Validation, check: Callable[[Workplace], CheckResult]
) -> None:
    """No message more and none less than the submitted tasks require."""
    checker = Checker(starpullm_validation, request.node, None)
    checker.alone(check, ranks=starpullm_validation.ranks_of(request.node))
