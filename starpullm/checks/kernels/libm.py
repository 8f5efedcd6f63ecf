"""What the kernels use of libm: vector functions with its bits where it is known, and its own functions elsewhere."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Final

from starpullm.binding import prototypes
from starpullm.checks.kernels.check import KernelResult, check_kernel
from starpullm.checks.libm import NUM_INPUTS, vector_levels
from starpullm.checks.place import Workplace
from starpullm.checks.result import CheckResult, Outcome, passed_if

if TYPE_CHECKING:
    from starpullm.checks.place import Place

ANOTHER_LIBM: Final = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA"}
"""The environment of a process in which glibc takes its functions without FMA: for the library an unknown libm."""

USERS: Final = ("softmax_forward", "attention_forward", "gelu_forward", "gelu_backward")
"""The kernels that use a function of which there is a vector version."""

_RANGES: Final = 48
_LARGEST: Final = 5000


@dataclass(frozen=True, kw_only=True)
class VectorLibmResult(CheckResult):
    """How the vector functions compare with libm's; ``compared`` counts inputs, ``measured`` those that differ.

    ``differences`` has a line for each function and level that differs.
    """

    unit: str = "inputs"
    differences: tuple[str, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the functions that differ."""
        yield from self.differences


@dataclass(frozen=True, kw_only=True)
class UsersResult(CheckResult):
    """How the kernels compare; ``compared`` counts elements of outputs, ``measured`` findings."""

    unit: str = "elements"
    kernels: tuple[KernelResult, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield what the kernels that failed found."""
        for kernel in self.kernels:
            if kernel.outcome is not Outcome.PASSED:
                yield from kernel.describe()


def has_another_libm() -> bool:
    """Return whether ``ANOTHER_LIBM`` changes the functions of this machine's libm."""
    return platform.machine() == "x86_64" and "CS_GNU_LIBC_VERSION" in os.confstr_names


def vector_functions(place: Place, *, seed: int) -> VectorLibmResult:
    """Compare the vector functions that the kernels use with libm's, on ranges of inputs of all lengths.

    Passed: in every level, each function that the kernels use instead of libm's has its bits for every input that was
    compared. ``starpullm doctor --prove-libm`` compares all of them.
    """
    del place
    random = Random(seed)
    used = [name for name in prototypes.names("vector_libm_name") if prototypes.vector_libm(name)[0]]
    compared = found = 0
    differences = []
    for level, function in product(vector_levels(), used):
        other, first = 0, None
        for number in range(_RANGES):
            count = number if number < _RANGES // 2 else random.randrange(1, _LARGEST)
            begin = random.randrange(NUM_INPUTS - count)
            here, pattern = prototypes.prove_libm(level, function, begin, begin + count)
            compared += count
            other += here
            first = pattern if first is None else first
        found += other
        if first is not None:
            differences.append(f"{function} of {level}: {other} inputs differ from libm, the first {first:#010x}")
    what = f"{compared} inputs of {len(used)} functions compared at {', '.join(vector_levels())}"
    return VectorLibmResult(
        name="bits of the vector functions of libm",
        outcome=passed_if(not found) if compared else Outcome.NOT_COMPARABLE,
        finding=what if compared else "the kernels use libm's own functions, which have no others to be compared with",
        compared=compared,
        measured=found if compared else None,
        differences=tuple(differences),
    )


def users_of_another_libm(workplace: Workplace) -> UsersResult:
    """Compare the kernels that use libm at every level with the plain ones, in a process with ``ANOTHER_LIBM``.

    Passed: at least one of the functions is libm's own at every level, and the kernels have the plain one's bits.
    """
    del workplace
    names = prototypes.names("vector_libm_name")
    own = [name for name in names if not prototypes.vector_libm(name)[0]]
    if not own:
        return UsersResult(
            name="kernels with another libm",
            outcome=Outcome.NOT_COMPARABLE,
            finding=f"{', '.join(names)} still have the bits of a known libm",
            compared=0,
            measured=None,
            kernels=(),
        )
    kernels = tuple(check_kernel(kernel, seed=0) for kernel in USERS)
    failed = [kernel.kernel for kernel in kernels if kernel.outcome is not Outcome.PASSED]
    compared = sum(kernel.compared for kernel in kernels)
    what = f"{compared} elements of {len(kernels)} kernels compared, with libm's own {', '.join(own)}"
    return UsersResult(
        name="kernels with another libm",
        outcome=passed_if(not failed),
        finding=f"{what}: other bits in {', '.join(failed)}" if failed else what,
        compared=compared,
        measured=sum(kernel.measured or 0 for kernel in kernels),
        kernels=kernels,
    )
