"""The kernels of every SIMD level that this machine has compute the bits of the plain ones, on shapes of no model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from starpullm.checks.kernels import CASES, kernel_bits, users_of_another_libm, vector_functions
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_kernels


@pytest.mark.parametrize("kernel", CASES)
def test_kernel_has_the_bits_of_the_plain_one(
    check_on_one_worker: Checker, kernel: str, starpullm_validation: Validation
) -> None:
    """Sizes below and above every vector, micro-tile and block, special values, teams; from a seed."""
    check_on_one_worker(kernel_bits, kernel=kernel, seed=starpullm_validation.seed)


def test_vector_functions_have_libm_s_bits(check_on_one_worker: Checker, starpullm_validation: Validation) -> None:
    """Ranges of inputs of all lengths, from a seed."""
    check_on_one_worker(vector_functions, seed=starpullm_validation.seed)


def test_kernels_have_the_plain_ones_bits_with_another_libm(
    request: pytest.FixtureRequest, starpullm_validation: Validation, other_libm: Mapping[str, str]
) -> None:
    """With functions of libm that the library doesn't know, the kernels call these."""
    Checker(starpullm_validation, request.node, None).alone(users_of_another_libm, environment=other_libm)
