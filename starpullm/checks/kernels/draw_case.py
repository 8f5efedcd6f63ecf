"""Random sizes, values and guarded buffers of a kernel's case, all of which follow from one seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
"""Memory, as the bits of its elements of 4 bytes."""

SUM_FROM_ZERO: Final = 0
SUM_CONTINUES: Final = 1

GUARD_BITS: Final = np.uint32(0xDEADBEEF)
"""Around every buffer: a write out of bounds shows."""

GARBAGE_BITS: Final = np.uint32(0x7FBADBAD)
"""A NaN, in outputs that a kernel must not read."""

_GUARD: Final = 48

# At, above and below every vector, micro-tile and small block of the kernels, and primes.
_TINY_SIZES: Final = range(1, 10)
_SMALL_SIZES: Final = range(1, 41)
_SIZES: Final = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 19, 20, 21, 23, 24, 25, 31, 32, 33, 37, 40, 47, 48, 49, 51, 52, 53),
    *(61, 63, 64, 65, 71, 95, 96, 97, 127, 128, 129, 131, 159, 160, 161, 191, 192, 193, 223, 255, 256, 257, 263, 288),
    *(383, 384, 385, 511, 512, 513, 768),
)
# Above the blocks that kernels cut sums and outputs into.
_LARGE_SIZES: Final = (769, 1023, 1024, 1025, 1100, 1537, 2047, 2048, 2049, 2304, 3072, 3073)
_POOLS: Final[tuple[Sequence[int], ...]] = (
    *(_TINY_SIZES, _SMALL_SIZES, _SIZES, _SIZES, _SMALL_SIZES, _TINY_SIZES, _SIZES, _SIZES),
)
"""The sizes of the cases by their number; of the last of eight, one size is of the large ones."""

# Of the second level; 0 stands for this machine's. Their number is prime, so that each meets each kind of case.
_CACHES: Final = (0, 1, 900, 5000, 23000, 60000, 150000, 400000, 700000, 1100000, 5000000)

VALUES: Final = ("ordinary", "wide", "tiny", "some zeros", "all zeros", "special")
_SPECIALS: Final = np.array(
    [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F7FFFFF, 0xFF7FFFFF, 0, 0x80000000], np.uint32
)

_MANY_ELEMENTS: Final = 300_000
_FEW_THREADS: Final = 3
_MOST_THREADS: Final = 40


@dataclass(frozen=True, eq=False)
class Buffer:
    """An array of a kernel, with guards on both sides; it begins at any multiple of 4 bytes."""

    memory: Words
    begin: int
    shape: tuple[int, ...]
    dtype: type[np.generic]

    @property
    def end(self) -> int:
        """Where the guard behind the array begins."""
        return self.begin + math.prod(self.shape)

    def array(self, memory: Words | None = None) -> NDArray[Any]:
        """Return the array in the buffer's memory, or in a copy of it."""
        words = (self.memory if memory is None else memory)[self.begin : self.end]
        return words.view(self.dtype).reshape(self.shape)


class Draw:
    """Draws one case, by the seed of the run, the kernel's place in the list of kernels, and the case's number."""

    def __init__(self, seed: int, kernel: int, number: int) -> None:
        self._rng = np.random.default_rng([seed, kernel, number])
        self.number = number
        self.values = VALUES[self.below(len(VALUES))] if number % 2 else VALUES[0]
        self._outputs = 0
        self.l2_cache = _CACHES[number % len(_CACHES)]

    def below(self, limit: int) -> int:
        """Return a number from 0 to ``limit`` - 1."""
        return int(self._rng.integers(limit))

    def size(self) -> int:
        """Return one size."""
        return self._one_of(_POOLS[self.number % len(_POOLS)])

    def sizes(self, count: int, limit: int) -> list[int]:
        """Return sizes whose product is at most ``limit``."""
        large = self.below(count) if self.number % len(_POOLS) == len(_POOLS) - 1 else count
        while True:
            drawn = [self._one_of(_LARGE_SIZES) if i == large else self.size() for i in range(count)]
            if math.prod(drawn) <= limit:
                return drawn

    def count(self) -> int:
        """Return a number of elements."""
        return self.size() if self.below(2) else 1 + self.below(20000)

    def start(self) -> int:
        """Return whether a sum continues or starts from zero."""
        return self.below(2)

    def threads(self) -> int:
        """Return the size of the team, mostly below 9, sometimes above what there is work for; few of large outputs."""
        if self._outputs > _MANY_ELEMENTS:
            return 1 + self.below(_FEW_THREADS)
        return 1 + self.below((1, 2, 8, 8, 8, 8, 8, _MOST_THREADS)[self.below(8)])

    def input(self, *shape: int) -> Buffer:
        """Return random values."""
        return self._filled(shape, self._bits(math.prod(shape)))

    def indices(self, limit: int, *shape: int) -> Buffer:
        """Return random indices below ``limit``."""
        drawn = self._rng.integers(limit, size=math.prod(shape), dtype=np.int32)
        return self._filled(shape, drawn.view(np.uint32), np.int32)

    def output(self, start: int, *shape: int) -> Buffer:
        """Return what a sum continues from: values; or, if the output must not be read, garbage."""
        count = math.prod(shape)
        self._outputs += count
        return self._filled(shape, self._bits(count) if start == SUM_CONTINUES else np.full(count, GARBAGE_BITS))

    def _one_of(self, values: Sequence[int]) -> int:
        return values[self.below(len(values))]

    def _filled(self, shape: tuple[int, ...], bits: Words, dtype: type[np.generic] = np.float32) -> Buffer:
        begin = _GUARD + self.below(16)
        memory = np.full(begin + len(bits) + _GUARD, GUARD_BITS)
        memory[begin : begin + len(bits)] = bits
        return Buffer(memory, begin, shape, dtype)

    def _bits(self, count: int) -> Words:
        """Return bits of floats, mostly of the case's kind, so that kinds also meet each other."""
        kind = self.values if self.below(4) else VALUES[self.below(len(VALUES))]
        random = self._rng.integers(1 << 64, size=count, dtype=np.uint64)
        low, choice = random.astype(np.uint32), (random >> np.uint64(40)).astype(np.uint32)
        sign, fraction = low & np.uint32(1 << 31), low & np.uint32(0x7FFFFF)
        match kind:
            case "wide":  # magnitudes 2^-24 to 2^24
                exponent = 127 - 24 + choice % 49
            case "tiny":  # subnormal, or so small that a product of two is subnormal
                exponent = np.where(choice & 1, 0, 127 - 72 + (choice >> 1) % 12)
            case _:
                exponent = 127 - 3 + choice % 4
        bits: Words = sign | exponent.astype(np.uint32) << np.uint32(23) | fraction
        if kind == "all zeros":  # of either sign: a sum's start shows
            return sign
        if kind == "some zeros":
            return np.where(choice & 8, sign, bits)
        if kind == "special":  # few: a result that is all NaN shows nothing
            for _ in range(self.below(4)):
                bits[self.below(count)] = _SPECIALS[self.below(len(_SPECIALS))]
        return bits
