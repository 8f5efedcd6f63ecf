"""Contents of handles, element by element: which is the first that differs, and whether all are within a tolerance."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import ulps_between
from starpullm.errors import InvalidArgumentError

TYPES: Final[Mapping[str, Mapping[int, np.dtype[Any]]]] = {
    "float": {4: np.dtype("<f4")},
    "double": {8: np.dtype("<f8")},
    "by-size": {4: np.dtype("<f4"), 8: np.dtype("<f8")},
    "integer": {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
}
"""What ``--tolerance-type`` says of the program's data: the type of numbers by their size in bytes."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far contents that come from a free order may be off.

    ``limit`` counts ULP, which is 1 for integers, or is relative to the larger of the two magnitudes. ``element_type``
    is a key of `TYPES`; StarPU knows only the sizes of elements.
    """

    limit: float
    unit: Literal["ULP", "relative"]
    element_type: str

    def __str__(self) -> str:
        return f"{self.limit:g} ULP" if self.unit == "ULP" else f"{self.limit:g} relative"

    def numbers(self, content: bytes, element_bytes: int) -> NDArray[Any] | None:
        """Return contents as numbers; None if the elements don't consist of numbers of the stated type."""
        for size in sorted(TYPES[self.element_type], reverse=True):
            if element_bytes > 0 and element_bytes % size == 0:
                return np.frombuffer(content, TYPES[self.element_type][size])
        return None


def parse_tolerance(text: str | None, element_type: str | None) -> Tolerance | None:
    """Return a tolerance such as ``4ulp`` or ``1e-6`` for numbers of a type; None if neither is given."""
    if text is None and element_type is None:
        return None
    if text is None:
        raise InvalidArgumentError("tolerance: found a type without a tolerance, expected both, or neither")
    if element_type is None:
        raise InvalidArgumentError(
            f"tolerance: found {text} without the type of the numbers, which StarPU doesn't know, expected one of "
            f"{', '.join(TYPES)}"
        )
    if element_type not in TYPES:
        raise InvalidArgumentError(f"tolerance type: found {element_type}, expected one of {', '.join(TYPES)}")
    found = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(ulp)?\s*", text, re.IGNORECASE)
    try:
        limit = float(found[1]) if found is not None else math.nan
    except ValueError:
        limit = math.nan
    if found is None or not math.isfinite(limit) or limit < 0:
        raise InvalidArgumentError(f"tolerance: found {text}, expected a number of ULP such as 4ulp, or one like 1e-6")
    return Tolerance(limit, "ULP" if found[2] else "relative", element_type)


@dataclass(frozen=True, slots=True)
class ElementDifference:
    """The first number, or the first element, that differs: where it is, both of them as text, and how many differ."""

    element: int
    expected: str
    found: str
    count: int
    total: int
    off_by: str = ""


def beyond(tolerance: Tolerance, expected: NDArray[Any], found: NDArray[Any]) -> ElementDifference | None:
    """Return the first of two equally long rows of numbers that is further off than the tolerance; None if none is.

    Equal numbers are within every tolerance, and so are two NaN. A NaN, or an infinity, and another number aren't.
    """
    if tolerance.unit == "ULP" and expected.dtype.kind == "i":
        distance = np.maximum(expected, found).astype(np.uint64) - np.minimum(expected, found).astype(np.uint64)
    elif tolerance.unit == "ULP":
        distance = ulps_between(expected, found)
    else:
        largest = np.maximum(np.abs(expected), np.abs(found)).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            distance = np.abs(found.astype(np.float64) - expected.astype(np.float64)) / largest
    finite = np.isfinite(expected) & np.isfinite(found)
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    wrong = ~same & ~(finite & (distance <= tolerance.limit))
    if not wrong.any():
        return None
    index = int(np.argmax(wrong))
    off_by = "" if not finite[index] else f"{distance[index]:.3g} {tolerance.unit}"
    return ElementDifference(
        index, _number(expected[index]), _number(found[index]), int(wrong.sum()), len(wrong), off_by
    )


def first_difference(expected: bytes, found: bytes, element_bytes: int) -> ElementDifference | None:
    """Return the first element of two equally long contents whose bytes differ; None if all are equal."""
    one, other = (np.frombuffer(content, np.uint8).reshape(-1, element_bytes) for content in (expected, found))
    differs = (one != other).any(axis=1)
    if not differs.any():
        return None
    index = int(np.argmax(differs))
    texts = [_element(values[index].tobytes()) for values in (one, other)]
    return ElementDifference(index, texts[0], texts[1], int(differs.sum()), len(differs))


def _element(content: bytes) -> str:
    """Return an element's bytes in hex, the most significant first, and what number it would be."""
    if len(content) > 16:
        return f"the bytes {content[:16].hex(' ')} …"
    text = f"0x{content[::-1].hex()}"
    if name := {4: "float", 8: "double"}.get(len(content)):
        text += f" ({_number(np.frombuffer(content, TYPES[name][len(content)])[0])} as {name})"
    return text


def _number(value: np.number[Any]) -> str:
    return repr(value.item()) if value.itemsize == 8 else str(value)
