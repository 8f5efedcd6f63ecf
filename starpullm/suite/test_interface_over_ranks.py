"""What only several ranks can show of limits, reports and files; collected only over ranks."""

from __future__ import annotations

import pytest

from starpullm.checks.interface import ranks, reports
from starpullm.pytest_plugin import Checker, Validation

from .test_interface import Check, name_of

pytestmark = [pytest.mark.starpullm_interface, pytest.mark.starpullm_over_ranks]


@pytest.mark.parametrize("check", [ranks.refused_over_ranks, ranks.saved_over_ranks, reports.owners], ids=name_of)
def test_ranks_agree(starpullm_check: Checker, starpullm_validation: Validation, one_record: str, check: Check) -> None:
    """A refusal is one on all ranks; each parameter has one owner, which saves it."""
    starpullm_check(check, record=one_record, seed=starpullm_validation.seed)


def test_threads_of_ranks_have_places(request: pytest.FixtureRequest, starpullm_validation: Validation) -> None:
    """With cores enough for all ranks of this machine, and without."""
    checker = Checker(starpullm_validation, request.node, None)
    checker.alone(ranks.threads_of_ranks, ranks=starpullm_validation.ranks_of(request.node))
