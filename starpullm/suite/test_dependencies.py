"""Tasks run in the order that their accesses require, and buffers used again by the next step cost nothing.

Run by ``pytest --pyargs starpullm.suite``.
"""

from __future__ import annotations

import pytest

from starpullm.checks import runs
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = pytest.mark.dependencies


def test_run_keeps_the_required_order(starpullm_check: Checker, case: Case, starpullm_validation: Validation) -> None:
    """Every task started after the end of each task that its declared accesses make it wait for."""
    starpullm_check(runs.observed_order, **case._asdict(), seed=starpullm_validation.seed)


def test_reuse_adds_nothing_to_the_critical_path(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """Compared with the same flow in which every step has buffers of its own."""
    starpullm_check(runs.reuse, **case._asdict(), seed=starpullm_validation.seed)
