"""What the kernels use of libm: vector functions with its bits where it is known, and its own functions elsewhere.

``native/src/kernels/libm.c`` lists the vector functions that passed `check_libm`.
"""

from __future__ import annotations

import os
import platform
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
from starpullm.checks.kernels.check import KernelBits
from starpullm.checks.result import Finding, Result

NUM_INPUTS: Final = 2**32
"""Number of binary32 values."""

USERS: Final = ("softmax_forward", "attention_forward", "gelu_forward", "gelu_backward")
"""The kernels that use a function of which there is a vector version."""

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


@check
class KernelsWithAnotherLibm(Check):
    """Compare the kernels that use libm at every level with the plain ones, in a process with another libm.

    There glibc takes its functions without FMA: for the library an unknown libm. At least one of the functions is
    libm's own then at every level, and the kernels have the plain one's bits.
    """

    family, unit = "kernels", "elements"
    claim = "with a libm that the library doesn't know, the kernels call its functions"
    fault = "with another libm the kernels have other bits than the plain ones"
    cannot_see = "a libm with other functions than glibc's"
    needs = Needs(Where.ALONE, ranks=(1, 1), environment={"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA"})
    without_cases = "this machine's C library has no other functions to take"

    def cases(self, asked: Asked, ranks: int) -> Iterator[Case]:
        """Yield a case where the environment changes the functions of this machine's libm."""
        if platform.machine() == "x86_64" and "CS_GNU_LIBC_VERSION" in os.confstr_names:
            yield Case()

    def run(self, place: object, case: Case) -> Result:
        """Compare each of ``USERS``; the findings are those of all kernels."""
        names = prototypes.names("vector_libm_name")
        own = [name for name in names if not prototypes.vector_libm(name)[0]]
        if not own:
            return self.result(compared=0, undecided=f"{', '.join(names)} still have the bits of a known libm")
        results = {kernel: KernelBits().of(kernel, seed=0) for kernel in USERS}
        return self.result(
            compared=sum(result.compared for result in results.values()),
            findings=[
                found._replace(sentence=f"{kernel}: {found.sentence}")
                for kernel, result in results.items()
                for found in result.findings
            ],
            count=sum(result.count for result in results.values()),
            note=f"with libm's own {', '.join(own)}",
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
