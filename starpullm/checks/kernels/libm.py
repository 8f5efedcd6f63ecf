"""The vector functions that the kernels use instead of libm's where it is known, compared with libm's.

``native/src/kernels/libm.c`` lists the vector functions that passed `check_libm`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from random import Random
from typing import Final

from starpullm.binding import prototypes
from starpullm.checks.cases import Asked, Case
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.result import Finding, Result

NUM_INPUTS: Final = 2**32
"""Number of binary32 values."""

_RANGES: Final = 48
_LARGEST: Final = 5000
_PART: Final = 2**18


def vector_levels() -> tuple[str, ...]:
    """Return the SIMD levels that this build has and this machine supports, the best last."""
    return tuple(name for name in prototypes.names("simd_level_name") if name != "ref")


@check
class VectorFunctions(Check):
    """Compare the vector functions that the kernels use with libm's, on ranges of inputs of all lengths.

    In every level, each function that the kernels use instead of libm's has its bits for every input that is compared.
    """

    family, unit = "kernels", "inputs"
    claim = "vector functions have the bits of libm's"
    fault = "vector functions have other bits than libm's"
    cannot_see = "inputs that weren't drawn: starpullm doctor --prove-libm compares all"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1))

    def cases(self, asked: Asked, ranks: int) -> Iterator[Case]:
        """Yield the one case; no record is needed."""
        yield Case(seed=asked.seed)

    def run(self, place: object, case: Case) -> Result:
        """Compare ranges; the runtime isn't used."""
        random = Random(case.seed)
        used = [name for name in prototypes.names("vector_libm_name") if prototypes.vector_libm(name)[0]]
        compared = wrong = 0
        findings = []
        for level, function in product(vector_levels(), used):
            other, first = 0, None
            for number in range(_RANGES):
                count = number if number < _RANGES // 2 else random.randrange(1, _LARGEST)
                begin = random.randrange(NUM_INPUTS - count)
                here, pattern = prototypes.prove_libm(level, function, begin, begin + count)
                compared += count
                other += here
                first = pattern if first is None else first
            wrong += other
            if first is not None:
                sentence = f"{function} of {level}: {other} inputs differ from libm, the first {first:#010x}"
                findings.append(Finding(sentence))
        nothing = "the kernels use libm's own functions, which have no others to be compared with"
        return self.result(
            compared=compared, findings=findings, count=wrong, undecided="" if compared else nothing, functions=used
        )


def check_libm(
    function: str,
    level: str,
    *,
    every: int = 1,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Compare a level's vector version of a function with libm's own at all 2^32 inputs.

    Passed: all inputs were compared and have results with the same bits. Two NaNs are equal, whatever their payloads.
    With ``every`` only every n-th part of 262,144 inputs is compared: faster, and inconclusive if no bits differ.
    ``threads`` None: one for each processing unit of this process; any of them calls ``progress`` with a number of
    inputs that have been compared. An `InvalidArgumentError` is raised if there is no such function or level.
    """
    begin = time.monotonic()

    def compare(start: int) -> tuple[int, int | None]:
        part = prototypes.prove_libm(level, function, start, start + _PART)
        if progress is not None:
            progress(_PART)
        return part

    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        # A failure cancels the parts that have not begun.
        parts = list(pool.map(compare, range(0, NUM_INPUTS, every * _PART)))
    inputs = len(parts) * _PART
    differences = sum(number for number, _ in parts)
    first = min((pattern for _, pattern in parts if pattern is not None), default=None)
    result = VectorFunctions().result(
        compared=inputs,
        findings=[] if first is None else [Finding(f"the first of input {first:#010x}")],
        count=differences,
        measured=differences,
        undecided="" if inputs == NUM_INPUTS else f"{inputs:,} of {NUM_INPUTS:,} inputs have the same bits",
        first_difference=first,
        seconds=time.monotonic() - begin,
    )
    return replace(result, check=f"{function} of {level}")
