"""Every tensor of every step has the bits of a golden record, and of llm.c itself, on any placement."""

from __future__ import annotations

import pytest

from starpullm.checks import runs
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = [pytest.mark.starpullm_parity, pytest.mark.starpullm_over_ranks]


def test_every_tensor_has_the_record_s_bits(starpullm_check: Checker, bitwise_case: Case) -> None:
    """All six groups of tensors and the mean loss are compared after each step."""
    starpullm_check(runs.parity, **bitwise_case._asdict())


def test_parity_with_llmc(starpullm_check: Checker, llmc_case: Case, starpullm_validation: Validation) -> None:
    """They are compared with those of llm.c itself, which runs once for each record."""
    starpullm_check(runs.parity_with_llmc, library=str(starpullm_validation.llmc_library), **llmc_case._asdict())
