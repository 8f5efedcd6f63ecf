"""Tests of sampling."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from starpullm.data.sampling import XorShift, sample
from starpullm.errors import InvalidArgumentError


def literal_sample(probabilities: NDArray[np.float32], coin: float) -> int:
    """llm.c's loop."""
    cumulated = np.float32(0)
    for index, probability in enumerate(probabilities):
        cumulated = cumulated + probability
        if np.float32(coin) < cumulated:
            return index
    return len(probabilities) - 1


@given(
    weights=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=50),
    coin=st.integers(0, 2**24 - 1).map(lambda bits: bits / 2**24),
)
def test_sample(weights: list[float], coin: float) -> None:
    """The vectorised choice is that of the loop, whatever the sum of the probabilities is."""
    probabilities = np.array(weights, np.float32)
    for each in (probabilities, probabilities / np.float32(max(sum(weights), 1))):
        assert sample(each, coin) == literal_sample(each, coin)


def test_sample_adds_in_order() -> None:
    """With many small terms the ordered binary32 sum differs from NumPy's own, and it is the ordered one."""
    probabilities = np.full(50257, np.float32(1 / 50257))
    coins = np.linspace(0, 1, 40, endpoint=False)
    assert [sample(probabilities, coin) for coin in coins] == [literal_sample(probabilities, coin) for coin in coins]


def test_sample_of_nothing() -> None:
    """There has to be something to choose from."""
    for bad in (np.zeros(0, np.float32), np.zeros((1, 2), np.float32)):
        with pytest.raises(InvalidArgumentError, match="probabilities"):
            sample(bad, 0.5)


@given(state=st.integers(1, 2**64 - 1))
def test_xorshift(state: int) -> None:
    """The state moves as a C program's 64-bit integer would."""
    random = XorShift(state)
    c_state = ctypes.c_uint64(state)
    for draw in range(6):
        c_state.value ^= c_state.value >> 12
        c_state.value ^= ctypes.c_uint64(c_state.value << 25).value
        c_state.value ^= c_state.value >> 27
        output = ctypes.c_uint32(ctypes.c_uint64(c_state.value * 0x2545F4914F6CDD1D).value >> 32).value
        if draw % 2 == 0:
            assert random.random_u32() == output
        else:
            coin = random.random_f32()
            assert coin == np.float32(output >> 8) / np.float32(16777216)
            assert 0 <= coin < 1
        assert random.state == c_state.value


@pytest.mark.parametrize("state", [0, -1, 2**64])
def test_xorshift_of_no_state(state: int) -> None:
    """0 would stay 0 forever."""
    with pytest.raises(InvalidArgumentError, match="random state"):
        XorShift(state)
