"""Lets each place of the library that allocates fail, and says what was wrong then.

Of each place that allocates during an operation, the first, the middle and the last allocation fails. The call has to
raise ``OutOfMemoryError``, or to do without the memory. When everything is closed, nothing must be left of what the
library has allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from starpullm.binding import allocations, prototypes
from starpullm.binding.allocations import Site
from starpullm.binding.kernels import Kernel
from starpullm.binding.library import find_library
from starpullm.checks.kernels.draw_case import Buffer
from starpullm.checks.kernels.kernel_cases import CASES, make_case
from starpullm.checks.leaks import allocated_at, left_allocations
from starpullm.errors import OutOfMemoryError, StarpullmError

KERNEL_CASES = 12
"""Some of them have heads that are packed."""
MOST_WRONG = 3
"""Of an operation; then no further allocation of it is tried, because a leak takes ``FREEING_SECONDS``."""


@dataclass(frozen=True)
class Operation:
    """What allocates, in a call that gets what was opened before; only the call's allocations fail."""

    opening: Callable[[], AbstractContextManager[Any]]
    call: Callable[[Any], object]
    """Its value has to be the same if it does without the memory."""
    stays: int = 0
    """Allocations that are freed by the next call."""


def kernel_operations() -> dict[str, Operation]:
    """Return the kernels of each level, which compute without the memory; no runtime is used."""
    functions = [Kernel(level, kernel) for kernel in CASES for level in prototypes.names("simd_level_name")]
    return {
        f"{function.name} at {function.level}": Operation(nullcontext, partial(_computed, function))
        for function in functions
    }


def scarce_kernels(workplace: object) -> None:
    """Raise an `AssertionError` with the first wrong ending of a kernel, in a process without a runtime."""
    del workplace
    for name, operation in kernel_operations().items():
        _, wrong = fail_each(operation)
        assert wrong == [], f"{name}: {wrong[0]}"


def _computed(function: Kernel, _: None) -> list[bytes]:
    """Return what a kernel computes in the first cases, in a thread without scratch memory; all NaNs are one."""

    def compute() -> Iterator[bytes]:
        for number in range(KERNEL_CASES):
            given = make_case(function.name, 1, number).arguments.items()
            arguments = {
                name: value.array(value.memory.copy()) if isinstance(value, Buffer) else value for name, value in given
            }
            function(arguments)
            outputs = (arguments[parameter.name] for parameter in function.parameters if parameter.output)
            yield from (
                np.where(np.isnan(output), np.nan, output).tobytes() for output in outputs if output is not None
            )

    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(lambda: list(compute())).result()


def fail_each(operation: Operation) -> tuple[int, list[str]]:
    """Let places of the library fail in an operation; return how many allocations did, and what was wrong then."""
    wrong: list[str] = []
    failed = 0
    with operation.opening() as opened:
        expected = operation.call(opened)  # what is allocated once, as a thread's scratch memory, is there from now on
    fault, _ = _fail(operation, expected, 0, 0)
    if fault:
        wrong.append(f"no allocation failed: {fault}")
    for caller, (made, site) in _places(operation).items():
        for number in sorted({1, (made + 1) // 2, made}):
            fault, reached = _fail(operation, expected, caller, number)
            failed += reached
            if fault:
                wrong.append(f"allocation {number} of {allocated_at(site)} failed: {fault}")
            if len(wrong) == MOST_WRONG:
                return failed, wrong
    return failed, wrong


def _places(operation: Operation) -> dict[int, tuple[int, Site]]:
    """Return the places in the library that allocate in an operation's call: how often, and what is known of them."""
    own = str(find_library())
    places: dict[int, tuple[int, Site]] = {}
    with operation.opening() as opened:
        allocations.start()
        operation.call(opened)
        allocations.stop()
    for site in allocations.sites():
        if site.module == own:
            made, _ = places.get(site.caller, (0, site))
            places[site.caller] = made + site.made, site
    return places


def _fail(operation: Operation, expected: object, caller: int, number: int) -> tuple[str, bool]:
    """Let a place's allocation fail (0: none), and return what was wrong, and whether there were so many."""
    fault, missing = "", number
    allocations.start()
    try:
        with operation.opening() as opened:
            allocations.refuse(caller, number)
            try:
                if operation.call(opened) != expected:
                    fault = "the result is another one"
            finally:
                missing = allocations.not_reached()
    except OutOfMemoryError:
        pass
    except StarpullmError as error:
        fault = f"expected OutOfMemoryError, found {type(error).__name__}: {error}"
    finally:
        allocations.stop()
    return fault or left_allocations(operation.stays), number > 0 and missing == 0
