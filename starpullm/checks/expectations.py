"""Expectations of what the library says or does, each of which is compared and counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import compare_bits
from starpullm.checks.result import Finding


class Expectations:
    """Expectations that have been compared; those that aren't met are ``wrong``."""

    def __init__(self) -> None:
        self.compared = 0
        self.wrong: list[Finding] = []

    def equal(self, what: str, expected: object, found: object) -> None:
        """Expect that two values are equal and of one type."""
        self.compared += 1
        if type(expected) is not type(found) or expected != found:
            self.add(what, repr(expected), repr(found))

    def same_bits(self, what: str, expected: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """Expect that two tensors have the same bits."""
        self.compared += 1
        difference = compare_bits(expected, found)
        if difference is not None:
            self.wrong.append(Finding(f"{what}: expected equal bits, found others", difference.evidence()))

    def add(self, what: str, expected: str, found: str) -> None:
        """Add an expectation that isn't met."""
        self.wrong.append(Finding(f"{what}: expected {expected}, found {found}"))
