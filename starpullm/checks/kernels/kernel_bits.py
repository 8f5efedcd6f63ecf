"""The kernels of every SIMD level compared bit for bit with the plain ones, on shapes that no model has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import prototypes
from starpullm.binding.kernels import Kernel, fit_caches, kernel_names, level_name, present_cache
from starpullm.checks.bits import BitDifference, compare_bits
from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.kernels.draw_case import GUARD_BITS, Buffer, Words
from starpullm.checks.kernels.guard_pages import GuardPages
from starpullm.checks.kernels.kernel_cases import CASES, KernelCase, make_case, product_kernels
from starpullm.checks.result import Finding, Result
from starpullm.errors import InvalidArgumentError
from starpullm.options import ARITHMETICS
from starpullm.processes.progress import report_phase

REFERENCE: Final = "ref"
"""The level of the plain kernels."""

_NAN: Final = np.uint32(0x7FC00000)


Function: TypeAlias = Callable[..., None]
"""A kernel, as `starpullm.binding.kernels.Kernel` is called."""


@check
class KernelBits(Check):
    """Compare a kernel of every SIMD level of this machine with the plain kernel, bit for bit, in random cases.

    A kernel with sums of products is compared with them fused, too, with the plain one's. In every case, every level
    computes every element of the outputs with the plain kernel's bits, each element by one
    thread of the team, writes nothing else, and changes no input. A read past the end of an input ends the process,
    whose phase is the kernel, level and case. The threads of a team run one after the other, each on memory as it was
    at the start, so that a thread that needs what another one computes doesn't find it. Two NaNs are equal, whatever
    their payloads. The plain kernel in one thread is what is compared with; with several threads it is compared too.
    """

    family, unit = "kernels", "elements"
    claim = "kernels of every SIMD level have the bits of the plain ones"
    fault = "a kernel of a level differs from the plain one"
    cannot_see = "a mistake of the plain kernel, which parity sees; sizes that weren't drawn"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1))

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a case for each kernel; no record is needed."""
        yield from (Case(what=kernel, seed=options.seed) for kernel in CASES)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Compare the kernel ``case.what``; the runtime isn't used."""
        return self.of(case.what, case.seed)

    def of(self, kernel: str, seed: int, cases: int | None = None) -> Result:
        """Compare a kernel in so many cases, or as many as ``CASES`` says."""
        if kernel not in CASES:
            raise InvalidArgumentError(f'what: found "{kernel}", expected a kernel with cases: {", ".join(CASES)}')
        unknown = [name for name in kernel_names() if name not in CASES]
        if unknown:
            raise InvalidArgumentError(
                f"kernels: found no cases for {', '.join(unknown)}, expected some for every kernel"
            )
        levels = list(prototypes.names("simd_level_name"))
        arithmetics = ARITHMETICS if kernel in product_kernels() else ARITHMETICS[:1]
        names = ([level_name(level, arithmetic) for level in levels] for arithmetic in arithmetics)
        functions = [{name: Kernel(name, kernel) for name in level_names} for level_names in names]
        outputs = [parameter.name for parameter in functions[0][REFERENCE].parameters if parameter.output]
        count = CASES[kernel].number if cases is None else cases
        compared = 0
        found: list[tuple[int, Finding]] = []
        guard_pages, present = GuardPages(), present_cache()
        try:
            for case in (make_case(kernel, seed, number) for number in range(count)):
                fit_caches(case.l2_cache or present)
                for of_arithmetic in functions:
                    elements, of_case = compare_levels(case, of_arithmetic, outputs, guard_pages)
                    compared += elements
                    found += [(elements, finding) for finding in of_case]
        finally:
            fit_caches(present)
        found.sort(key=lambda entry: entry[0])  # those of the smallest case first
        findings = [finding for _, finding in found]
        return self.result(compared=compared, findings=findings, levels=[*chain(*functions)], cases=count)


def compare_levels(
    case: KernelCase, functions: Mapping[str, Function], outputs: Sequence[str], guard_pages: GuardPages
) -> tuple[int, list[Finding]]:
    """Run a case at every level; return how many elements were compared, and what was wrong.

    The first level's kernel is what those of the other levels are compared with. The inputs lie before ``guard_pages``.
    """
    reference = next(iter(functions))
    inputs = _inputs(case, outputs)
    case = replace(case, arguments={**case.arguments, **guard_pages.copies(inputs)})
    plain = {name: case.arguments[name] for name in outputs if case.arguments[name] is not None}
    expected = {name: buffer.memory.copy() for name, buffer in plain.items()}
    report_phase(f"{case.kernel} at {reference}, case {case.number}")
    _call(functions[reference], case, expected, 0, 1)
    compared = 0
    findings = []
    for level, function in functions.items():
        if level == reference and case.threads == 1:
            continue
        report_phase(f"{case.kernel} at {level}, case {case.number}")
        for output, sentence, difference in _compare(function, case, plain, expected):
            evidence = {} if difference is None else difference.evidence()
            findings.append(Finding(f"{output}{sentence}", evidence, f"{level}, {case}"))
        compared += sum(buffer.end - buffer.begin for buffer in plain.values())
    return compared, findings


def _inputs(case: KernelCase, outputs: Collection[str]) -> dict[str, Buffer]:
    arguments = case.arguments.items()
    return {name: value for name, value in arguments if isinstance(value, Buffer) and name not in outputs}


def _call(function: Function, case: KernelCase, outputs: Mapping[str, Words], thread: int, threads: int) -> None:
    """Call a kernel as one thread of a team, with its outputs in other memory than the case's."""
    arguments = {
        name: value.array(outputs.get(name)) if isinstance(value, Buffer) else value
        for name, value in case.arguments.items()
    }
    function(arguments, thread=thread, threads=threads)


def _compare(
    function: Function, case: KernelCase, outputs: Mapping[str, Buffer], expected: Mapping[str, Words]
) -> Iterator[tuple[str, str, BitDifference | None]]:
    """Yield for every fault the name of an array, what is wrong, and how its bits differ."""
    inputs = _inputs(case, outputs)
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
    function: Function, case: KernelCase, outputs: Mapping[str, Buffer], computed: Mapping[str, Words]
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
