"""Sampling of a token with llm.c's random numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError


def sample(probabilities: NDArray[np.float32], coin: float) -> int:
    """Return the index that a random number in [0, 1) selects, as llm.c does.

    It is the first index at which the running sum, in binary32 and in ascending order, exceeds the number, or the last
    index if rounding keeps the sum from exceeding it.

    """
    if probabilities.ndim != 1 or probabilities.size == 0:
        raise InvalidArgumentError(
            f"probabilities: expected one dimension that isn't empty, found {probabilities.shape}"
        )
    # NumPy adds in ascending order in cumsum, but not in sum.
    exceeds = np.cumsum(probabilities, dtype=np.float32) > np.float32(coin)
    return int(np.argmax(exceeds)) if exceeds.any() else probabilities.size - 1


class XorShift:
    """llm.c's random numbers: xorshift64*, of which the high 32 bits are used; in state 0 all numbers would be 0."""

    def __init__(self, state: int) -> None:
        if not 0 < state < 2**64:
            raise InvalidArgumentError(f"random state: expected a number in [1, 2^64), found {state}")
        self.state = state

    def random_u32(self) -> int:
        """Return the next number in [0, 2^32)."""
        state = self.state
        state ^= state >> 12
        state ^= (state << 25) % 2**64
        state ^= state >> 27
        self.state = state
        return (state * 0x2545F4914F6CDD1D) % 2**64 >> 32

    def random_f32(self) -> float:
        """Return the next number in [0, 1); it is a multiple of 2^-24, so exact in binary32."""
        return (self.random_u32() >> 8) / 2**24
