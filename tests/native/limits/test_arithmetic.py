"""What C callers ask of kernels and of the floating-point environment, apart from any trainer."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from starpullm.binding import prototypes
from starpullm.binding.kernels import Kernel, fit_caches, kernel_names, present_cache
from starpullm.checks.kernels.kernel_bits import KernelBits
from starpullm.checks.kernels.kernel_cases import CASES
from starpullm.errors import InvalidArgumentError

from .refusals import refused

pytestmark = pytest.mark.child("one worker", preloads="allocations")

_UPWARD = 0x800
"""The rounding mode FE_UPWARD of fenv.h on x86-64."""

_DEFAULT = ctypes.c_void_p(-1)
"""FE_DFL_ENV of glibc's fenv.h."""

_MXCSR = 28
"""Where glibc's fenv_t has the SSE control word on x86-64: after the 28 bytes of the x87's environment."""

_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
"""Bits of that control word (Intel's manual, volume 1, 10.2.3)."""


@pytest.mark.parametrize(
    ("level", "name", "start"),
    [
        ("none", "gradient_add", 'level: found "none", expected a SIMD level of this machine'),
        ("ref", "none", 'kernel: found "none", expected one of starpullm_kernel_name()'),
    ],
)
def test_kernel_that_is_not_there(level: str, name: str, start: str) -> None:
    with refused(InvalidArgumentError, start):
        Kernel(level, name)


def test_arguments_of_a_kernel() -> None:
    add, one = Kernel("ref", "gradient_add"), np.ones(1, np.float32)
    with refused(InvalidArgumentError, "term: found no such argument, expected one of type float"):
        add({"sum": one, "count": 1})
    with refused(InvalidArgumentError, "term: expected a contiguous array of float"):
        add({"sum": one, "term": one.astype(np.float64), "count": 1})


def test_check_of_a_kernel() -> None:
    before = present_cache()
    assert KernelBits().of("residual_forward", 5, cases=12).outcome.value == "passed"
    assert present_cache() == before
    with refused(InvalidArgumentError, 'what: found "none", expected a kernel with cases: ', ", ".join(CASES)):
        KernelBits().of("none", 1)


def test_names_of_kernels() -> None:
    names = list(kernel_names())
    assert names == list(CASES)
    assert prototypes.call("kernel_name", len(names)) is None


def test_cache_of_no_byte() -> None:
    with refused(InvalidArgumentError, "l2_cache: found 0 bytes, expected a positive size"):
        fit_caches(0)


@pytest.mark.parametrize("seconds", [0.0, 61.0, -1.0, math.nan])
def test_seconds_of_a_measurement(seconds: float) -> None:
    with refused(InvalidArgumentError, f"seconds: found {seconds:g}, expected more than 0 and at most 60"):
        prototypes.peak_gflops(fused=False, seconds=seconds)


def test_peak() -> None:
    """With fused operations it is 0 where there are none."""
    prototypes.peak_gflops(fused=False, seconds=1e-3)
    assert 0 <= prototypes.peak_gflops(fused=True, seconds=1e-6) < math.inf


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the registers are x86-64's")
@pytest.mark.parametrize(
    ("sentence", "rounding", "bits"),
    [
        ("", 0, 0),
        ("the rounding mode isn't to nearest", _UPWARD, 0),
        ("flush-to-zero is on: denormal results become 0", 0, _FLUSH_TO_ZERO),
        ("denormals-are-zero is on: denormal operands count as 0", 0, _DENORMALS_ARE_ZERO),
    ],
)
def test_environment_of_the_calling_thread(sentence: str, rounding: int, bits: int) -> None:
    with _environment(rounding, bits):
        found = prototypes.call("float_environment")
    assert prototypes.text(found) == sentence


@contextmanager
def _environment(rounding: int, bits: int) -> Iterator[None]:
    """Give this thread the default environment but for these changes; on x86-64 with glibc."""
    libm = ctypes.CDLL(None)
    before, changed = (ctypes.create_string_buffer(64) for _ in range(2))
    libm.fegetenv(before)
    libm.fesetenv(_DEFAULT)
    libm.fesetround(rounding)
    libm.fegetenv(changed)
    word = ctypes.c_uint32.from_buffer(changed, _MXCSR)
    word.value |= bits
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(before)
