"""Vector versions of libm's functions: compared with the platform's own, input by input.

``starpullm doctor --prove-libm`` calls it; what it finds is what ``native/src/kernels/libm.c`` may list as proven.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from starpullm.binding import prototypes
from starpullm.checks.result import CheckResult, Outcome

__all__ = ["NUM_INPUTS", "LibmResult", "check_libm", "vector_levels"]

NUM_INPUTS = 2**32
"""The binary32 values."""

_PART = 2**18


@dataclass(frozen=True, kw_only=True)
class LibmResult(CheckResult):
    """How one level's vector version of a function compares; ``measured``: inputs with other bits, of which 0 may be.

    Parameters
    ----------
    function
        Name in C.
    level
        SIMD level.
    inputs
        How many were compared.
    first_difference
        Bit pattern of the first input whose results differ, if any.
    seconds
        What it took.
    """

    function: str
    level: str
    inputs: int
    first_difference: int | None
    seconds: float


def vector_levels() -> tuple[str, ...]:
    """Return the SIMD levels of this machine and build, the best last."""
    return tuple(name for name in prototypes.names("simd_level_name") if name != "ref")


def check_libm(
    function: str,
    level: str,
    *,
    every: int = 1,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LibmResult:
    """Compare a level's vector version of a function with libm's own at all 2^32 inputs.

    Passed means that all were compared and have the same bits; NaNs are equal whatever their payloads.

    Parameters
    ----------
    function
        One of `starpullm.machine.vector_libm`.
    level
        One of `vector_levels`.
    every
        Compare only each ``every``-th part of 262,144 inputs: quicker, and inconclusive if nothing differs.
    threads
        How many compare; None: as many as this process may use.
    progress
        Called with a number of inputs that have been compared, from any of the threads.

    Raises
    ------
    InvalidArgumentError
        If there is no such function or level.
    """
    starts = iter(range(0, NUM_INPUTS, every * _PART))  # shared: whoever is done with a part takes the next
    given_up = threading.Event()

    def compare() -> list[tuple[int, int | None]]:
        parts = []
        try:
            for start in starts:
                if given_up.is_set():
                    break
                parts.append(prototypes.prove_libm(level, function, start, start + _PART))
                if progress is not None:
                    progress(_PART)
        except BaseException:
            given_up.set()
            raise
        return parts

    begin = time.monotonic()
    threads = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(compare) for _ in range(threads)]
        try:
            parts = [part for future in futures for part in future.result()]
        finally:
            given_up.set()
    inputs = len(parts) * _PART
    differences = sum(number for number, _ in parts)
    first = min((pattern for _, pattern in parts if pattern is not None), default=None)
    if differences:
        outcome = Outcome.FAILED
        finding = f"{differences:,} of {inputs:,} inputs have other bits, the first {first:#010x}"
    elif inputs < NUM_INPUTS:
        outcome, finding = Outcome.INCONCLUSIVE, f"{inputs:,} of {NUM_INPUTS:,} inputs have the same bits"
    else:
        outcome, finding = Outcome.PASSED, f"all {inputs:,} inputs have the same bits"
    return LibmResult(
        name=f"{function} of {level}",
        outcome=outcome,
        finding=finding,
        measured=differences,
        limit=0,
        function=function,
        level=level,
        inputs=inputs,
        first_difference=first,
        seconds=time.monotonic() - begin,
    )
