"""Bits are the same if blocks share buffers, and if a run is resumed."""

from __future__ import annotations

import pytest

from starpullm.checks import lifetimes
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = pytest.mark.starpullm_parity


def test_shared_buffers_move_no_bit(
    starpullm_check: Checker, light_case: Case, starpullm_validation: Validation
) -> None:
    """Blocks share buffers in training; parity runs use separate buffers, which can be read."""
    starpullm_check(lifetimes.shared_buffers, **light_case._asdict(), seed=starpullm_validation.seed)


def test_resumed_run_has_the_bits_of_one_that_was_not_stopped(
    starpullm_check: Checker, light_case: Case, starpullm_validation: Validation
) -> None:
    """It is saved after half of its steps, closed and resumed."""
    starpullm_check(lifetimes.resumed, **light_case._asdict(), seed=starpullm_validation.seed)
