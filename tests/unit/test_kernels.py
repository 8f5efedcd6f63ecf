"""Tests of the comparison of kernels: every way to be wrong is found, by functions in Python that stand for a level's.

That the library's own kernels pass is shown by the suite, and that it finds wrong ones by evaluation/mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from starpullm.checks.bits import bits_of
from starpullm.checks.kernels.draw_case import SUM_CONTINUES, Buffer
from starpullm.checks.kernels.guard_pages import GuardPages
from starpullm.checks.kernels.kernel_bits import Function, compare_levels
from starpullm.checks.kernels.kernel_cases import CASES, KernelCase, make_case
from starpullm.checks.result import Finding

KERNEL = "residual_forward"


def share(count: int, thread: int, threads: int) -> slice:
    return slice(count * thread // threads, count * (thread + 1) // threads)


def residual(arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
    own = share(arguments["count"], thread, threads)
    np.add(arguments["a"][own], arguments["b"][own], out=arguments["out"][own])


def changed_by(change: Callable[[Mapping[str, Any], int], None]) -> Function:
    """Return the kernel, followed by a change of memory that gets the number of the thread."""

    def kernel(arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        residual(arguments, thread=thread, threads=threads)
        change(arguments, thread)

    return kernel


def beyond(array: np.ndarray[Any, np.dtype[np.float32]], index: int) -> np.ndarray[Any, Any]:
    """Return one element before or behind an array."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4 + index
    return base.reshape(-1).view(np.uint32)[offset : offset + 1]


def case_with(threads: int, count: int = 20) -> KernelCase:
    number = next(
        n for n in range(0, 4000, 2) if (made := make_case(KERNEL, 7, n)).threads == threads and size(made) >= count
    )
    return make_case(KERNEL, 7, number)


def size(case: KernelCase) -> int:
    return int(case.arguments["count"])


@pytest.fixture(scope="module")
def cases() -> dict[int, KernelCase]:
    return {threads: case_with(threads) for threads in (1, 2)}


def compare(case: KernelCase, kernel: Function) -> tuple[int, list[Finding]]:
    with np.errstate(all="ignore"):
        return compare_levels(case, {"ref": residual, "mine": kernel}, ["out"], GuardPages())


@pytest.mark.parametrize(("threads", "runs"), [(1, 1), (2, 2)])
def test_the_same_kernel_passes_and_its_elements_are_counted(
    cases: dict[int, KernelCase], threads: int, runs: int
) -> None:
    """The plain kernel itself is compared where there are several threads."""
    case = cases[threads]
    assert compare(case, residual) == (runs * size(case), [])


def flip(array: np.ndarray[Any, np.dtype[np.float32]], index: int) -> None:
    array.view(np.uint32)[index] ^= 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a, thread: flip(a["out"], -1) if thread + 1 == a["threads"] else None, " has other bits"),
        (lambda a, thread: flip(a["a"], 3) if thread == 0 else None, " is an input, and was changed at 3"),
        (lambda a, thread: beyond(a["out"], -1).fill(0), " was written out of bounds, at -1 of "),
        (lambda a, thread: beyond(a["out"], a["count"] + 40).fill(0), " was written out of bounds, at "),
    ],
)
def test_what_is_wrong_is_found(
    cases: dict[int, KernelCase], change: Callable[[Mapping[str, Any], int], None], sentence: str, threads: int
) -> None:
    case = cases[threads]
    _, findings = compare(case, changed_by(lambda a, thread: change({**a, "threads": threads}, thread)))
    assert any(sentence in str(finding) for finding in findings), findings
    assert all(finding.where == f"mine, {case}" for finding in findings)
    assert str(findings[0]).startswith(
        f"mine, case {case.number} (count={size(case)}; {threads} thread{'s' if threads > 1 else ''}, "
    )


def test_the_first_element_that_differs_is_described(cases: dict[int, KernelCase]) -> None:
    case = cases[1]
    _, [finding] = compare(case, changed_by(lambda a, thread: flip(a["out"], 5)))
    assert finding.sentence == "out has other bits"
    assert finding.evidence["first element"] == "5, [5]"
    assert finding.evidence["differ"].startswith("1 of ")
    expected = np.float32(case.arguments["a"].array()[5] + case.arguments["b"].array()[5])
    assert finding.evidence["expected"] == f"0x{bits_of(expected)} ({expected!s})"


def test_an_element_that_no_thread_computes_is_found(cases: dict[int, KernelCase]) -> None:
    def kernel(arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        if thread == 0:
            residual(arguments, thread=thread, threads=threads)

    case = cases[2]
    _, [finding] = compare(case, kernel)
    assert finding.evidence["first element"].startswith(f"{share(size(case), 0, 2).stop}, ")


def test_an_element_that_two_threads_compute_is_found(cases: dict[int, KernelCase]) -> None:
    def kernel(arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        residual(arguments, thread=0, threads=1)

    _, findings = compare(cases[2], kernel)
    assert [finding.sentence.rpartition(": ")[2] for finding in findings] == [
        "thread 1 computes element 0, which another thread has computed"
    ]


def test_a_thread_that_needs_what_another_computes_is_found(cases: dict[int, KernelCase]) -> None:
    def kernel(arguments: Mapping[str, Any], *, thread: int, threads: int) -> None:
        residual(arguments, thread=thread, threads=threads)
        if thread == 1:
            last = share(arguments["count"], 0, 2).stop - 1
            arguments["out"][last + 1] += arguments["out"][last]

    _, [finding] = compare(cases[2], kernel)
    assert finding.evidence["elements by ULPs off"].endswith("NaNs: 1")  # it found garbage


def test_inputs_are_the_same_for_the_next_level_after_one_was_changed(cases: dict[int, KernelCase]) -> None:
    case = cases[1]
    before = case.arguments["a"].memory.copy()
    compare(case, changed_by(lambda a, thread: flip(a["a"], 0)))
    assert np.array_equal(case.arguments["a"].memory, before)


@pytest.mark.parametrize("kernel", CASES)
def test_a_seed_gives_the_same_cases_again(kernel: str) -> None:
    first, again, other = (make_case(kernel, seed, 3) for seed in (1, 1, 2))
    assert str(first) == str(again)
    texts = []
    for case in (first, again, other):
        buffers = {name: value for name, value in case.arguments.items() if isinstance(value, Buffer)}
        texts.append({name: buffer.memory.tobytes() for name, buffer in buffers.items()})
        assert all(buffer.array().size for buffer in buffers.values())
    assert texts[0] == texts[1] != texts[2]


def test_the_cases_stand_on_both_sides_of_thresholds() -> None:
    """Products that aren't packed, heads that fill micro-tiles, sums above the longest block."""
    arguments = {name: [make_case(name, 1, n).arguments for n in range(cases.number)] for name, cases in CASES.items()}
    products = [(a["N"], a["C"], a["rows"]) for a in arguments["matmul_backward_weight"]]
    assert any(n > 1 and n * c * oc <= 512 for n, c, oc in products)
    assert any(min(sizes) > 256 for sizes in products)
    assert any(n > 1024 for n, _, _ in products)
    heads = [(a["T"], a["C"] // a["NH"]) for a in arguments["attention_forward"]]
    for width in (12, 16, 32):
        assert any(head % width == 0 and t * t * head > 2048 for t, head in heads), width
    assert any(head % 4 and t * t * head > 2048 for t, head in heads)
    assert any(t > 768 for t, _ in heads)
    assert any(head > 768 for _, head in heads)
    assert any(a["C"] > 131072 for a in arguments["matmul_forward"])
    assert {a["start"] for a in arguments["layernorm_backward_input"]} == {SUM_CONTINUES, 1 - SUM_CONTINUES}


def test_findings_are_described_the_first_with_its_bits(cases: dict[int, KernelCase]) -> None:
    def change(arguments: Mapping[str, Any], thread: int) -> None:
        flip(arguments["out"], 5)
        flip(arguments["a"], 3)

    _, found = compare(cases[1], changed_by(change))
    assert [finding.sentence.rpartition(": ")[2].split()[0] for finding in found] == ["a", "out"]
    assert (found[0].evidence, "first element" in found[1].evidence) == ({}, True)
