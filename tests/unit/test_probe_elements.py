"""Contents compared element by element: distances, tolerances, and the first difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.checks.bits import ulps_between
from starpullm.errors import InvalidArgumentError
from starpullm.probe.elements import Tolerance, beyond, first_difference, parse_tolerance


def parsed(text: str, element_type: str = "double") -> Tolerance:
    tolerance = parse_tolerance(text, element_type)
    assert tolerance is not None
    return tolerance


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_are_steps_of_nextafter(dtype: type[np.floating]) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    one: NDArray[np.floating] = np.array([1, -1, 0.0, tiny, -tiny, 1], dtype)
    up = np.nextafter(np.nextafter(one, dtype(np.inf)), dtype(np.inf))
    assert ulps_between(one, up).tolist() == [2, 2, 2, 2, 2, 2]
    assert ulps_between(np.array([-0.0, 1], dtype), np.array([0.0, -1], dtype))[0] == 0
    assert ulps_between(np.array([-1], dtype), np.array([1], dtype))[0] > 2**29


@pytest.mark.parametrize("text", ["4ulp", "1e-15", "2 ULP"])
def test_numbers_within_a_tolerance(text: str) -> None:
    expected = np.array([1.0, 0.0, math.nan, math.inf, -3.0])
    found = np.array([1.0 + 2**-52, -0.0, -math.nan, math.inf, -3.0])
    assert beyond(parsed(text), expected, found) is None


@pytest.mark.parametrize(
    ("expected", "found"), [(1.0, 1.5), (1.0, math.nan), (math.inf, 1.7e308), (0.0, 1e-300), (math.inf, -math.inf)]
)
@pytest.mark.parametrize("text", ["4ulp", "0.1"])
def test_numbers_beyond_a_tolerance(text: str, expected: float, found: float) -> None:
    difference = beyond(parsed(text), np.array([2.0, expected, 0]), np.array([2.0, found, 0]))
    assert difference is not None
    assert (difference.element, difference.count, difference.total) == (1, 1, 3)


def test_integers() -> None:
    """A ULP is 1, also where a double has no such number."""
    content = np.array([2**62, -1, 7]).tobytes()
    expected = parsed("0", "integer").numbers(content, 8)
    assert expected is not None
    found = expected + np.array([1, 0, -3])
    assert beyond(parsed("3ulp", "integer"), expected, found) is None
    difference = beyond(parsed("2ulp", "integer"), expected, found)
    assert difference is not None
    assert (difference.element, difference.found, difference.off_by) == (2, "4", "3 ULP")
    assert beyond(parsed("0ulp", "integer"), expected, found) is not None
    assert beyond(parsed("0.5", "integer"), expected, found) is None


def test_zero_tolerance_is_equality() -> None:
    numbers = np.array([1.0, 2.0])
    assert beyond(parsed("0"), numbers, numbers) is None
    assert beyond(parsed("0ulp"), numbers, np.nextafter(numbers, 3)) is not None


def test_numbers_have_a_stated_type() -> None:
    content = np.array([1.0, 2.0]).tobytes()
    for element_type, element_bytes, dtype in (
        ("double", 8, "f8"),
        ("double", 16, "f8"),
        ("float", 8, "f4"),
        ("by-size", 8, "f8"),
        ("by-size", 4, "f4"),
    ):
        numbers = parsed("1", element_type).numbers(content, element_bytes)
        assert numbers is not None
        assert numbers.dtype == dtype
    assert parsed("1", "double").numbers(content, 4) is None
    assert parsed("1", "by-size").numbers(content, 1) is None


def test_bad_tolerances() -> None:
    assert parse_tolerance(None, None) is None
    for text, element_type, sentence in (
        ("4ulp", None, "without the type of the numbers, which StarPU doesn't know, expected one of float, double"),
        (None, "float", "found a type without a tolerance"),
        ("4 bits", "float", "found 4 bits, expected a number of ULP"),
        ("-1", "float", "found -1"),
        ("e", "float", "found e, expected"),
        ("1", "half", "tolerance type: found half"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            parse_tolerance(text, element_type)
        assert sentence in str(caught.value)


def test_the_first_difference() -> None:
    expected, found = np.arange(6.0), np.arange(6.0)
    assert first_difference(expected.tobytes(), found.tobytes(), 8) is None
    found[[2, 4]] = 7, 8
    difference = first_difference(expected.tobytes(), found.tobytes(), 8)
    assert difference is not None
    assert (difference.element, difference.count, difference.total) == (2, 2, 6)
    assert difference.expected == "0x4000000000000000 (2.0 as double)"
    structs = first_difference(expected.tobytes(), found.tobytes(), 24)
    assert structs is not None
    assert (structs.element, structs.total) == (0, 2)
    assert structs.found.startswith("the bytes 00 00 00 00 00 00 00 00 00 00 00 00 00 00 f0 3f …")
