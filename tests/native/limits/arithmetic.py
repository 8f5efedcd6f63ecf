"""What C callers ask of kernels and of the floating-point environment, apart from any trainer."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from starpullm.binding import prototypes
from starpullm.binding.kernels import Kernel, fit_caches, kernel_names, present_cache
from starpullm.checks.kernels.cases import CASES
from starpullm.checks.kernels.check import KernelBits
from starpullm.errors import InvalidArgumentError

from .statements import Statements

_UPWARD = 0x800
"""The rounding mode FE_UPWARD of fenv.h on x86-64."""

_DEFAULT = ctypes.c_void_p(-1)
"""FE_DFL_ENV of glibc's fenv.h."""

_MXCSR = 28
"""Where glibc's fenv_t has the SSE control word on x86-64: after the 28 bytes of the x87's environment."""

_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
"""Bits of that control word (Intel's manual, volume 1, 10.2.3)."""


def check_arithmetic(statements: Statements) -> None:
    """State what the functions of the library's arithmetic refuse, and that they see the caller's environment."""
    _check_measurements(statements)
    _check_kernels(statements)
    if os.uname().machine == "x86_64":
        _check_environment(statements)


def _check_kernels(statements: Statements) -> None:
    for level, name, sentence in (
        ("none", "gradient_add", 'level: found "none", expected a SIMD level of this machine'),
        ("ref", "none", 'kernel: found "none", expected one of starpullm_kernel_name()'),
    ):
        statements.refused(
            f"kernel {name} of level {level}", InvalidArgumentError, sentence, partial(Kernel, level, name)
        )
    one = np.ones(1, np.float32)
    add = Kernel("ref", "gradient_add")
    sentence = "term: found no such argument, expected one of type float"
    statements.refused("no term", InvalidArgumentError, sentence, partial(add, {"sum": one, "count": 1}))
    doubles = {"sum": one, "term": one.astype(np.float64), "count": 1}
    sentence = "term: expected a contiguous array of float"
    statements.refused("a term of doubles", InvalidArgumentError, sentence, partial(add, doubles))
    before = present_cache()
    statements.equal("a kernel's check", "passed", KernelBits().of("residual_forward", 5, cases=12).outcome.value)
    statements.equal("the cache after it", before, present_cache())
    sentence = f'what: found "none", expected a kernel with cases: {", ".join(CASES)}'
    statements.refused("the check of no kernel", InvalidArgumentError, sentence, partial(KernelBits().of, "none", 1))
    names = kernel_names()
    statements.equal("kernels with cases", list(CASES), list(names))
    statements.equal("the kernel after the last", None, prototypes.call("kernel_name", len(names)))
    sentence = "l2_cache: found 0 bytes, expected a positive size"
    statements.refused("a cache of 0 bytes", InvalidArgumentError, sentence, partial(fit_caches, 0))
    fused = prototypes.peak_gflops(fused=True, seconds=1e-6)
    statements.equal("a peak with fused operations is a rate, or 0 without them", True, 0 <= fused < np.inf)


def _check_environment(statements: Statements) -> None:
    """State what the library says of the calling thread's environment, which a caller may have changed."""
    for what, sentence, rounding, bits in (
        ("nothing changed", "", 0, 0),
        ("rounding upward", "the rounding mode isn't to nearest", _UPWARD, 0),
        ("flush-to-zero", "flush-to-zero is on: denormal results become 0", 0, _FLUSH_TO_ZERO),
        ("denormals-are-zero", "denormals-are-zero is on: denormal operands count as 0", 0, _DENORMALS_ARE_ZERO),
    ):
        with _environment(rounding, bits):
            found = prototypes.call("float_environment")
        statements.equal(f"the environment with {what}", sentence, prototypes.text(found))


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


def _check_measurements(statements: Statements) -> None:
    for text, seconds in (("0", 0.0), ("61", 61.0), ("-1", -1.0), ("nan", float("nan"))):
        statements.refused(
            f"a measurement of {text} s",
            InvalidArgumentError,
            f"seconds: found {text}, expected more than 0 and at most 60",
            partial(prototypes.peak_gflops, fused=False, seconds=seconds),
        )
    statements.allowed("a short measurement", partial(prototypes.peak_gflops, fused=False, seconds=1e-3))
