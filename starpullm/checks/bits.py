"""Two tensors compared bit for bit: which element differs first, how many differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class BitDifference:
    """How two tensors of the same shape differ.

    ``differing`` elements have other bits. The first of them has the row-major ``index`` and the ``position`` in each
    dimension; its bits are in hex, the most significant first; it is ``ulps`` off: 0 if the two are zeros of different
    sign, None if one of them is a NaN. ``ulp_counts`` counts elements with different values by distance, in classes
    between powers of two, the smallest first: the smallest and the largest number of ULP, and how many elements;
    ``zero_signs`` counts those that are zeros of different sign; ``nans`` those of which at least one is a NaN.
    """

    shape: tuple[int, ...]
    differing: int
    index: int
    position: tuple[int, ...]
    expected_bits: str
    found_bits: str
    expected: float
    found: float
    ulps: int | None
    ulp_counts: tuple[tuple[int, int, int], ...]
    zero_signs: int
    nans: int

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    def evidence(self) -> dict[str, str]:
        """Return the evidence of a finding; a scalar has less."""
        rows = {}
        if self.shape:
            percentage = 100 * self.differing / self.elements
            rows["differ"] = f"{self.differing} of {self.elements} elements {self.shape} ({percentage:.3g} %)"
            rows["first element"] = f"{self.index}, {list(self.position)}"
        distance = "" if self.ulps is None else f", {self.ulps} ULP off"
        number = np.float32 if len(self.expected_bits) == 8 else np.float64
        rows["expected"] = f"0x{self.expected_bits} ({number(self.expected)!s})"
        rows["found"] = f"0x{self.found_bits} ({number(self.found)!s}){distance}"
        if self.shape:
            counts = [f"{low}{f' to {high}' if high > low else ''}: {count}" for low, high, count in self.ulp_counts]
            others = f"zeros of other sign: {self.zero_signs}; NaNs: {self.nans}"
            rows["elements by ULPs off"] = f"{', '.join(counts) or 'none'}; {others}"
        return rows

    def facts(self) -> dict[str, int | str]:
        """Return how far the elements are off, for programs: the first one, and the most, as they are counted."""
        return {
            "ulps_of_first": "NaN" if self.ulps is None else self.ulps,
            "ulps_at_most": max((largest for _, largest, _ in self.ulp_counts), default=0),
        }


def compare_bits(expected: NDArray[np.floating], found: NDArray[np.floating]) -> BitDifference | None:
    """Return how two tensors differ, or None if all bits are equal.

    -0 differs from +0, and a NaN differs from a NaN with another payload. An `InvalidArgumentError` is raised if the
    shapes or the types differ, or the type is neither float32 nor float64.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype or found.dtype not in (np.float32, np.float64):
        raise InvalidArgumentError(
            f"tensors to compare: found {found.dtype} {found.shape} and {expected.dtype} {expected.shape}, expected "
            "two of float32 or of float64 with the same shape"
        )
    size, number = found.itemsize, found.dtype
    expected_bits, found_bits = (
        np.ascontiguousarray(array).reshape(-1).view(f"u{size}") for array in (expected, found)
    )
    indices = np.flatnonzero(expected_bits != found_bits)
    if not indices.size:
        return None
    first = int(indices[0])
    left, right = expected_bits[indices].view(number), found_bits[indices].view(number)
    nan = np.isnan(left) | np.isnan(right)
    distances = ulps_between(left[~nan], right[~nan])
    return BitDifference(
        shape=tuple(expected.shape),
        differing=indices.size,
        index=first,
        position=tuple(int(i) for i in np.unravel_index(first, expected.shape)),
        expected_bits=f"{expected_bits[first]:0{2 * size}x}",
        found_bits=f"{found_bits[first]:0{2 * size}x}",
        expected=float(left[0]),
        found=float(right[0]),
        ulps=None if nan[0] else int(distances[0]),
        ulp_counts=tuple(_ulp_counts(distances[distances > 0])),
        zero_signs=int(np.count_nonzero(distances == 0)),
        nans=int(np.count_nonzero(nan)),
    )


def ulps_between(left: NDArray[np.floating], right: NDArray[np.floating]) -> NDArray[np.uint64]:
    """Return the distances in ULP of binary32 or binary64 numbers; infinity follows the largest finite one."""
    sign = np.uint64(1 << (8 * left.itemsize - 1))
    one, other = (values.view(f"u{values.itemsize}").astype(np.uint64) for values in (left, right))
    magnitudes = one & ~sign, other & ~sign
    apart = np.maximum(*magnitudes) - np.minimum(*magnitudes)
    distances: NDArray[np.uint64] = np.where((one ^ other) & sign, magnitudes[0] + magnitudes[1], apart)
    return distances


def bits_of(value: np.float32) -> str:
    """Return a value's bits in hex, the most significant first."""
    return f"{np.float32(value).view(np.uint32):08x}"


def _ulp_counts(distances: NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for exponent, count in enumerate(np.bincount(np.searchsorted(powers, distances, side="right"))):
        if count:
            yield 1 << (exponent - 1), (1 << exponent) - 1, int(count)
