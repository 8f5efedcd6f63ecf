"""Tasks access what they declare, run in the order that this requires, and reused buffers don't cost time."""

from __future__ import annotations

import pytest

from starpullm.checks import runs
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = pytest.mark.starpullm_dependencies


def test_reuse_adds_nothing_to_the_critical_path(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """The comparison is with the same task flow in which every step has buffers of its own."""
    starpullm_check(runs.reuse, **case._asdict(), seed=starpullm_validation.seed)
