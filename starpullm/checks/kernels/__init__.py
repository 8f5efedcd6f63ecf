"""The kernels of every SIMD level compared bit for bit with the plain ones, on shapes that no model has."""

from starpullm.checks.kernels.cases import CASES, Case, make_case
from starpullm.checks.kernels.check import KernelResult, check_kernel, kernel_bits

__all__ = ["CASES", "Case", "KernelResult", "check_kernel", "kernel_bits", "make_case"]
