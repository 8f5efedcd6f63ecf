"""Every tensor of every step has the bits of a golden record, wherever it was computed.

Run by ``pytest --pyargs starpullm.suite``.
"""

from __future__ import annotations

import pytest

from starpullm.checks import runs
from starpullm.pytest_plugin import Checker

from .conftest import Case

pytestmark = pytest.mark.parity


def test_every_tensor_has_the_record_s_bits(starpullm_check: Checker, bitwise_case: Case) -> None:
    """All six groups of tensors and the mean loss, after each step."""
    starpullm_check(runs.parity, **bitwise_case._asdict())
