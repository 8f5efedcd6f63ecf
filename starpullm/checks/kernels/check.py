"""Calls a kernel of every SIMD level on the same cases, and compares the bits of its outputs with the plain one's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import prototypes
from starpullm.binding.kernels import Kernel, fit_caches, kernel_names, present_caches
from starpullm.checks.bits import BitDifference, compare_bits
from starpullm.checks.kernels.cases import CASES, Case, make_case
from starpullm.checks.kernels.draw import GUARD_BITS, Buffer, Words
from starpullm.checks.kernels.fence import Fences
from starpullm.checks.result import MAX_LISTED, CheckResult, listed, passed_if
from starpullm.errors import InvalidArgumentError
from starpullm.processes.progress import report_phase

if TYPE_CHECKING:
    from starpullm.checks.place import Place

REFERENCE: Final = "ref"
"""The level of the plain kernels."""

_NAN: Final = np.uint32(0x7FC00000)


class Function(Protocol):
    """A kernel as `starpullm.binding.kernels.Kernel` calls it."""

    def __call__(self, arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        """Compute one thread's part of the outputs."""


class Declared(NamedTuple):
    """A kernel of a level, and the names of the arrays that it writes."""

    function: Function
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class KernelFinding:
    """What a level's kernel did otherwise than the plain one, in one case.

    ``difference`` describes the bits of ``output``; it is None if ``sentence`` says what else is wrong.
    """

    level: str
    case: str
    output: str
    sentence: str
    difference: BitDifference | None

    def lines(self) -> Iterator[str]:
        """Yield the lines that describe it."""
        yield f"{self.level}, {self.case}: {self.output}{self.sentence}"
        if self.difference is not None:
            yield from (f"  {line}" for line in self.difference.lines())


@dataclass(frozen=True, kw_only=True)
class KernelResult(CheckResult):
    """How the levels of a kernel compare; ``compared`` counts elements of outputs, ``measured`` findings.

    ``findings`` lists the first ``MAX_LISTED``, of the smallest cases first. ``levels`` are those that were compared
    with the plain kernel, which is one of them in cases with several threads. ``environment`` says how the
    floating-point environment differed from the default one, if it did.
    """

    unit: str = "elements"
    kernel: str
    levels: tuple[str, ...]
    cases: int
    environment: str
    findings: tuple[KernelFinding, ...]
    by_level: dict[str, int]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings, the first with all that is known of it."""
        if not self.findings:
            return
        first, *others = self.findings
        yield from first.lines()
        yield from (line for line in listed([next(other.lines()) for other in others], int(self.measured or 0) - 1))
        yield "by level: " + ", ".join(f"{level} {count}" for level, count in self.by_level.items())
        if self.environment:
            yield f"floating-point environment: {self.environment}"


def kernel_bits(place: Place, *, kernel: str, seed: int) -> KernelResult:
    """Compare one kernel of every level with the plain one; the runtime of ``place`` isn't used."""
    del place
    return check_kernel(kernel, seed=seed)


def check_kernel(kernel: str, *, seed: int, cases: int | None = None) -> KernelResult:
    """Compare a kernel of every SIMD level of this machine with the plain kernel, bit for bit, in random cases.

    Passed: in every case, every level has computed every element of the outputs with the plain kernel's bits, each
    element by one thread of the team, has written nothing else, and has changed no input. A read past the end of an
    input ends the process, whose phase is the kernel, level and case. The threads of a team run one
    after the other, each on memory as it was at the start, so that a thread that needs what another one computes
    doesn't find it. Two NaNs are equal, whatever their payloads. The plain kernel in one thread is what is compared
    with; with several threads it is compared too.

    Parameters
    ----------
    kernel
        One of ``starpullm.binding.kernels.kernel_names``.
    seed
        Of the cases.
    cases
        Their number; None: as many as ``CASES`` says.

    Raises
    ------
    InvalidArgumentError
        If there is no such kernel, or no cases for it.
    """
    if kernel not in CASES:
        raise InvalidArgumentError(f'kernel: found "{kernel}", expected one with cases: {", ".join(CASES)}')
    unknown = [name for name in kernel_names() if name not in CASES]
    if unknown:
        raise InvalidArgumentError(f"kernels: found no cases for {', '.join(unknown)}, expected some for every kernel")
    levels = tuple(prototypes.names("simd_level_name"))
    declared = {level: _declare(Kernel(level, kernel)) for level in levels}
    count = CASES[kernel].number if cases is None else cases
    compared = 0
    findings: list[tuple[int, KernelFinding]] = []
    fences = Fences()
    with _caches_kept() as present:
        for case in (make_case(kernel, seed, number) for number in range(count)):
            fit_caches(*(case.caches or present))
            elements, found = compare_levels(case, declared, fences)
            compared += elements
            findings += [(elements, finding) for finding in found]
    findings.sort(key=lambda entry: entry[0])
    return _result(kernel, levels, count, compared, [finding for _, finding in findings])


def compare_levels(case: Case, declared: Mapping[str, Declared], fences: Fences) -> tuple[int, list[KernelFinding]]:
    """Run a case at every level; return how many elements were compared, and what was wrong.

    ``declared`` has the kernel of each level, and names its outputs; that of `REFERENCE` is what the others are
    compared with. The inputs lie before ``fences``.
    """
    reference = declared[REFERENCE]
    inputs = {
        name: value
        for name, value in case.arguments.items()
        if isinstance(value, Buffer) and name not in reference.outputs
    }
    case = replace(case, arguments={**case.arguments, **fences.copies(inputs)})
    plain = {name: case.arguments[name] for name in reference.outputs if case.arguments[name] is not None}
    expected = {name: buffer.memory.copy() for name, buffer in plain.items()}
    report_phase(f"{case.kernel} at {REFERENCE}, case {case.number}")
    _call(reference.function, case, expected, 0, 1)
    compared = 0
    findings = []
    for level, (function, _) in declared.items():
        if level == REFERENCE and case.threads == 1:
            continue
        report_phase(f"{case.kernel} at {level}, case {case.number}")
        for output, sentence, difference in _compare(function, case, plain, expected):
            findings.append(KernelFinding(level, str(case), output, sentence, difference))
        compared += sum(buffer.end - buffer.begin for buffer in plain.values())
    return compared, findings


def _declare(kernel: Kernel) -> Declared:
    return Declared(kernel, tuple(parameter.name for parameter in kernel.parameters if parameter.output))


@contextmanager
def _caches_kept() -> Iterator[tuple[int, int]]:
    """Give the present sizes of caches, and set them again."""
    present = present_caches()
    try:
        yield present
    finally:
        fit_caches(*present)


def _result(
    kernel: str, levels: Sequence[str], cases: int, compared: int, findings: Sequence[KernelFinding]
) -> KernelResult:
    what = f"{cases} cases, {compared} elements compared at {', '.join(levels)}"
    return KernelResult(
        name=f"bits of {kernel}",
        outcome=passed_if(not findings),
        finding=what if not findings else f"{len(findings)} findings in {what}",
        compared=compared,
        measured=len(findings),
        kernel=kernel,
        levels=tuple(levels),
        cases=cases,
        environment=prototypes.text(prototypes.call("float_environment")),
        findings=tuple(findings[:MAX_LISTED]),
        by_level=dict(Counter(finding.level for finding in findings)),
    )


# ---- One level ----


def _call(function: Function, case: Case, outputs: Mapping[str, Words], thread: int, threads: int) -> None:
    """Call a kernel as one thread of a team, with its outputs in other memory than the case's."""
    arguments = {
        name: value.array(outputs.get(name)) if isinstance(value, Buffer) else value
        for name, value in case.arguments.items()
    }
    function(arguments, thread=thread, threads=threads)


def _compare(
    function: Function, case: Case, outputs: Mapping[str, Buffer], expected: Mapping[str, Words]
) -> Iterator[tuple[str, str, BitDifference | None]]:
    """Yield for every fault the name of an array, what is wrong, and how its bits differ."""
    inputs = {
        name: value for name, value in case.arguments.items() if isinstance(value, Buffer) and name not in outputs
    }
    kept = {name: buffer.memory.copy() for name, buffer in inputs.items()}
    computed = {name: buffer.memory.copy() for name, buffer in outputs.items()}
    yield from _run_team(function, case, outputs, computed)
    for name, buffer in inputs.items():
        changed = np.flatnonzero(buffer.memory != kept[name])
        if changed.size:
            yield name, f" is an input, and was changed at {changed[0] - buffer.begin}", None
            buffer.memory[...] = kept[name]
    for name, buffer in outputs.items():
        memory = computed[name]
        outside = np.flatnonzero(memory != GUARD_BITS)
        outside = outside[(outside < buffer.begin) | (outside >= buffer.end)]
        if outside.size:
            elements = buffer.end - buffer.begin
            yield name, f" was written out of bounds, at {outside[0] - buffer.begin} of {elements}", None
        difference = compare_bits(_values(buffer, expected[name]), _values(buffer, memory))
        if difference is not None:
            yield name, " has other bits", difference


def _run_team(
    function: Function, case: Case, outputs: Mapping[str, Buffer], computed: Mapping[str, Words]
) -> Iterator[tuple[str, str, None]]:
    """Put together what the threads compute; yield what two of them compute both."""
    if case.threads == 1:
        _call(function, case, computed, 0, 1)
        return
    own = {name: memory.copy() for name, memory in computed.items()}
    for thread in range(case.threads):
        _call(function, case, own, thread, case.threads)
        for name, buffer in outputs.items():
            changed = np.flatnonzero(own[name] != buffer.memory)
            values, before = own[name][changed], computed[name][changed]
            twice = np.flatnonzero(before != buffer.memory[changed])
            if twice.size:
                element = changed[twice[0]] - buffer.begin
                yield name, f": thread {thread} computes element {element}, which another thread has computed", None
            computed[name][changed] = values
            own[name][changed] = buffer.memory[changed]


def _values(buffer: Buffer, memory: Words) -> NDArray[np.float32]:
    """Return the array of a buffer in other memory, with one NaN for all."""
    values = buffer.array(memory).copy()
    values.view(np.uint32)[np.isnan(values)] = _NAN
    return values
