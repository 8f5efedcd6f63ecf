"""Vector versions of libm's functions, compared with the platform's own at every input.

``native/src/kernels/libm.c`` lists the versions that passed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from starpullm.binding import prototypes
from starpullm.checks.result import Finding, Result, judged

NUM_INPUTS = 2**32
"""Number of binary32 values."""

_PART = 2**18


def vector_levels() -> tuple[str, ...]:
    """Return the SIMD levels that this build has and this machine supports, the best last."""
    return tuple(name for name in prototypes.names("simd_level_name") if name != "ref")


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

    Parameters
    ----------
    function
        One of `starpullm.machine.vector_libm`.
    level
        One of `vector_levels`.
    every
        Compare only every n-th part of 262,144 inputs. This is faster, and inconclusive if no bits differ.
    threads
        Number of threads; None: one for each processing unit of this process.
    progress
        Called from any of the threads with a number of inputs that have been compared.

    Raises
    ------
    InvalidArgumentError
        If there is no such function or level.
    """
    begin = time.monotonic()
    parts = _compare_parts(function, level, range(0, NUM_INPUTS, every * _PART), threads, progress)
    inputs = len(parts) * _PART
    differences = sum(number for number, _ in parts)
    first = min((pattern for _, pattern in parts if pattern is not None), default=None)
    return judged(
        check=f"{function} of {level}",
        unit="inputs",
        fault="results have other bits than libm's",
        compared=inputs,
        findings=[] if first is None else [Finding(f"the first of input {first:#010x}")],
        count=differences,
        measured=differences,
        undecided="" if inputs == NUM_INPUTS else f"{inputs:,} of {NUM_INPUTS:,} inputs have the same bits",
        family="kernels",
        claim="the vector version has libm's bits at every input",
        facts={"first_difference": first, "seconds": time.monotonic() - begin},
    )


def _compare_parts(
    function: str, level: str, starts: Iterable[int], threads: int | None, progress: Callable[[int], None] | None
) -> list[tuple[int, int | None]]:
    """Return for each part the number of inputs with other bits, and the first of them."""
    remaining = iter(starts)  # shared by the threads: each takes the next part
    stop = threading.Event()

    def compare() -> list[tuple[int, int | None]]:
        parts = []
        try:
            for start in remaining:
                if stop.is_set():
                    break
                parts.append(prototypes.prove_libm(level, function, start, start + _PART))
                if progress is not None:
                    progress(_PART)
        except BaseException:
            stop.set()
            raise
        return parts

    threads = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(compare) for _ in range(threads)]
        try:
            return [part for future in futures for part in future.result()]
        finally:
            stop.set()
