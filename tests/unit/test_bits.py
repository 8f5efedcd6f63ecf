"""Tests of comparing two tensors bit for bit, against the definition of each number that comes out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from starpullm.checks.bits import bits_of, compare_bits
from starpullm.errors import InvalidArgumentError
from starpullm.testing import assert_same_bits

PAGE = Path(__file__).parents[2] / "docs" / "validate.md"


def tensor(*patterns: int) -> NDArray[np.float32]:
    """The values with these bits."""
    return np.array(patterns, np.uint32).view(np.float32)


def test_equal_bits() -> None:
    values = tensor(0x00000000, 0x80000000, 0x7FC00001, 0xFF800000, 0x00000001)
    assert compare_bits(values, values.copy()) is None
    assert compare_bits(np.empty((0, 3), np.float32), np.empty((0, 3), np.float32)) is None


def test_first_difference() -> None:
    expected = np.ones((2, 3, 4), np.float32)
    found = expected.copy()
    found[1, 0, 2] = np.nextafter(np.float32(1), np.float32(2))
    found[1, 2, 3] = np.float32(1.5)
    difference = compare_bits(expected, found)
    assert difference is not None
    assert (difference.index, difference.position) == (14, (1, 0, 2))
    assert (difference.differing, difference.elements, difference.shape) == (2, 24, (2, 3, 4))
    assert (difference.expected_bits, difference.found_bits) == ("3f800000", "3f800001")
    assert (difference.expected, difference.found) == (1.0, 1.0 + 2**-23)
    assert difference.ulps == 1
    assert difference.ulp_counts == ((1, 1, 1), (2**22, 2**23 - 1, 1))
    assert difference.evidence() == {
        "differ": "2 of 24 elements (2, 3, 4) (8.33 %)",
        "first element": "14, [1, 0, 2]",
        "expected": "0x3f800000 (1.0)",
        "found": "0x3f800001 (1.0000001), 1 ULP off",
        "elements by ULPs off": "1: 1, 4194304 to 8388607: 1; zeros of other sign: 0; NaNs: 0",
    }


def test_zeros_of_other_sign_are_counted_apart() -> None:
    difference = compare_bits(tensor(0x80000000, 0, 1), tensor(0, 0x80000000, 0x80000001))
    assert difference is not None
    assert (difference.differing, difference.zero_signs, difference.nans) == (3, 2, 0)
    assert difference.ulps == 0
    # From the smallest positive number to the smallest negative one: two steps over zero.
    assert difference.ulp_counts == ((2, 3, 1),)


def test_nans_are_counted_apart() -> None:
    difference = compare_bits(tensor(0x7FC00000, 0x3F800000, 0x7F800000), tensor(0x7FC00001, 0x7FC00000, 0x7F7FFFFF))
    assert difference is not None
    assert (difference.differing, difference.nans, difference.zero_signs) == (3, 2, 0)
    assert difference.ulps is None
    # The largest finite number is next to infinity.
    assert difference.ulp_counts == ((1, 1, 1),)
    assert (difference.evidence()["expected"], difference.evidence()["found"]) == (
        "0x7fc00000 (nan)",
        "0x7fc00001 (nan)",
    )
    assert difference.facts() == {"ulps_of_first": "NaN", "ulps_at_most": 1}


def test_a_single_value_has_no_position() -> None:
    difference = compare_bits(np.array(4, np.float32), np.array(-4, np.float32))
    assert difference is not None
    assert difference.evidence() == {"expected": "0x40800000 (4.0)", "found": "0xc0800000 (-4.0), 2164260864 ULP off"}
    assert bits_of(np.float32(4)) == "40800000"


def test_neither_order_nor_other_types_are_mixed_up() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert compare_bits(np.asfortranarray(values), values) is None
    with pytest.raises(InvalidArgumentError, match=r"found float32 \(3, 2\) and float32 \(2, 3\)"):
        compare_bits(values, values.T)
    with pytest.raises(InvalidArgumentError, match="found float64"):
        compare_bits(values, values.astype(np.float64))
    with pytest.raises(InvalidArgumentError, match="found int32"):
        compare_bits(values.view(np.int32), values.view(np.int32))


def test_binary64() -> None:
    difference = compare_bits(np.array([1.0, -1.0, 0.0]), np.array([1.0 + 2**-52, 1.0, -0.0]))
    assert difference is not None
    assert difference.evidence() == {
        "differ": "3 of 3 elements (3,) (100 %)",
        "first element": "0, [0]",
        "expected": "0x3ff0000000000000 (1.0)",
        "found": "0x3ff0000000000001 (1.0000000000000002), 1 ULP off",
        "elements by ULPs off": f"1: 1, {2**62} to {2**63 - 1}: 1; zeros of other sign: 1; NaNs: 0",
    }


def test_the_example_of_the_assertion() -> None:
    """validate.md has the program and what it prints."""
    text = PAGE.read_text("utf-8").partition("assert_same_bits")[2]
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    [message] = re.findall(r"```\nAssertionError: (.*?)\n```", text, re.DOTALL)
    with pytest.raises(AssertionError) as caught:
        exec(program, {})
    assert str(caught.value) == message


@pytest.mark.parametrize("wrong", [tensor(1, 2), np.ones(3), tensor(1, 2, 1 << 31), tensor(0, 0, 3)])
def test_the_assertion_fails_on_another_array(wrong: NDArray[np.floating]) -> None:
    expected = tensor(1, 2, 0)
    assert_same_bits(expected.copy(), expected)
    with pytest.raises(AssertionError, match=r"arrays have different bits|tensors to compare: found"):
        assert_same_bits(wrong, expected)


PATTERNS = arrays(
    np.uint32, 20, elements=st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1 << 31, 0x7FC00000]))
)


@given(PATTERNS, PATTERNS)
def test_every_different_element_is_counted_once(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> None:
    difference = compare_bits(left.view(np.float32), right.view(np.float32))
    differing = int(np.count_nonzero(left != right))
    if difference is None:
        assert differing == 0
        return
    assert difference.differing == differing
    assert sum(count for _, _, count in difference.ulp_counts) + difference.zero_signs + difference.nans == differing
    assert difference.index == int(np.flatnonzero(left != right)[0])
