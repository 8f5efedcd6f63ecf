"""The kernels of every SIMD level that this machine has compute the bits of the plain ones, on shapes of no model."""

from __future__ import annotations

import pytest

from starpullm.checks.kernels import CASES, kernel_bits
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_kernels


@pytest.mark.parametrize("kernel", CASES)
def test_kernel_has_the_bits_of_the_plain_one(
    check_on_one_worker: Checker, kernel: str, starpullm_validation: Validation
) -> None:
    """Sizes below and above every vector, micro-tile and block, special values, teams; from a seed."""
    check_on_one_worker(kernel_bits, kernel=kernel, seed=starpullm_validation.seed)
