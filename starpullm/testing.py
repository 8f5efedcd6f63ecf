"""Assertions for the tests of other projects."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from starpullm.checks.bits import compare_bits
from starpullm.checks.result import Finding
from starpullm.errors import InvalidArgumentError


def assert_same_bits(found: ArrayLike, expected: ArrayLike) -> None:
    """Raise an `AssertionError` unless two arrays of float32, or of float64, are equal bit for bit.

    -0 differs from +0, and a NaN from a NaN with another payload. The message names the first element that differs,
    with both values and their distance in ULP, and how many elements differ by how much. Arrays of other shapes or
    types differ, too.
    """
    __tracebackhide__ = True
    try:
        difference = compare_bits(np.asarray(expected), np.asarray(found))
    except InvalidArgumentError as error:
        raise AssertionError(str(error)) from None
    if difference is not None:
        raise AssertionError("\n".join(Finding("arrays have different bits", difference.evidence()).lines()))
