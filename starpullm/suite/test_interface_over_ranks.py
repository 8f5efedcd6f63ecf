"""What only several ranks can show of a run; collected only over ranks."""

from __future__ import annotations

import pytest

from starpullm.checks import sessions, threads
from starpullm.pytest_plugin import Checker, Validation

pytestmark = [pytest.mark.starpullm_interface, pytest.mark.starpullm_over_ranks]


def test_each_parameter_has_one_owner(
    starpullm_check: Checker, starpullm_validation: Validation, one_record: str
) -> None:
    """It updates and saves the parameter."""
    starpullm_check(sessions.owners, record=one_record, seed=starpullm_validation.seed)


def test_threads_of_ranks_have_places(request: pytest.FixtureRequest, starpullm_validation: Validation) -> None:
    """With cores enough for all ranks of this machine, and without."""
    checker = Checker(starpullm_validation, request.node, None)
    checker.alone(threads.threads_of_ranks, ranks=starpullm_validation.ranks_of(request.node))
