"""The kernels of every SIMD level compared bit for bit with the plain ones, on shapes that no model has."""

from starpullm.checks.kernels.cases import CASES, Case, make_case
from starpullm.checks.kernels.check import KernelResult, check_kernel, kernel_bits
from starpullm.checks.kernels.libm import (
    ANOTHER_LIBM,
    UsersResult,
    VectorLibmResult,
    has_another_libm,
    users_of_another_libm,
    vector_functions,
)

__all__ = [
    "ANOTHER_LIBM",
    "CASES",
    "Case",
    "KernelResult",
    "UsersResult",
    "VectorLibmResult",
    "check_kernel",
    "has_another_libm",
    "kernel_bits",
    "make_case",
    "users_of_another_libm",
    "vector_functions",
]
