"""The order in which the reduction ``tree`` adds the gradients of sub-batches, read off a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from starpullm.checks.result import MAX_LISTED, CheckResult, listed, passed_if
from starpullm.trace import AccessMode, TaskRecord, Trace

Sum: TypeAlias = "int | tuple[Sum, Sum]"
"""A sub-batch's own gradient, or the sum of two."""

_GRADIENT = re.compile(r"grads/(.+)#(\d+)$")


@dataclass(frozen=True, kw_only=True)
class TreeResult(CheckResult):
    """Whether all sums have the shape of numerics.md; ``compared`` counts sums, ``measured`` those that differ.

    ``findings`` lists the first ``MAX_LISTED``.
    """

    unit: str = "sums"
    findings: tuple[str, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield from listed(self.findings, int(self.measured or 0))


def expected_sum(first: int, count: int) -> Sum:
    """Return the sum of ``count`` sub-batches from ``first`` on: the largest power of two below, and the rest."""
    if count == 1:
        return first
    half = 1 << (count - 1).bit_length() - 1
    return expected_sum(first, half), expected_sum(first + half, count - half)


def check_tree(trace: Trace, sub_batches: int) -> TreeResult:
    """Compare, for each gradient of each step, the sum that is used for its update with the tree of numerics.md.

    Passed: each update has read sub-batch 0's gradient after the additions that make it the expected sum. What a task
    of an addition computes is for other checks: that it adds what it declares to read to what it declares to change.

    Parameters
    ----------
    trace
        Of whole steps.
    sub_batches
        Those of all ranks.
    """
    expected = expected_sum(0, sub_batches)
    sums: dict[str, dict[int, Sum]] = {}
    findings: list[str] = []
    compared = 0
    for task in trace:
        gradients = list(_gradients(task))
        if task.operation == "gradient_add":
            (to, at), (other, source) = (
                next(gradient for gradient, mode in gradients if (mode is AccessMode.READ) is is_read)
                for is_read in (False, True)
            )
            of_tensor = sums.setdefault(to, {})
            of_tensor[at] = of_tensor.get(at, at), of_tensor.get(source, source)
            if other != to:
                findings.append(f"{to}, step {task.step}: found the gradient of {other} added, expected its own")
        elif task.operation == "adamw_update":
            for (name, s), _ in gradients:
                found = sums.get(name, {}).get(s, s)
                compared += 1
                if found != expected:
                    findings.append(f"{name}, step {task.step}: found {sum_text(found)}, expected {sum_text(expected)}")
            for (name, _), _ in gradients:
                sums.pop(name, None)
    what = f"{compared} sums of {sub_batches} sub-batches compared"
    return TreeResult(
        name="order of the tree",
        outcome=passed_if(not findings),
        finding=f"{what}, {len(findings)} differ" if findings else what,
        compared=compared,
        measured=len(findings),
        findings=tuple(findings[:MAX_LISTED]),
    )


def sum_text(of: Sum) -> str:
    """Return a sum in brackets, such as ``((0 + 1) + 2)``."""
    return str(of) if isinstance(of, int) else f"({sum_text(of[0])} + {sum_text(of[1])})"


def _gradients(task: TaskRecord) -> Iterator[tuple[tuple[str, int], AccessMode]]:
    """Yield tensor, sub-batch and mode of each gradient that a task accesses."""
    for access in task.accesses:
        gradient = _GRADIENT.match(access.handle.name)
        if gradient:
            yield (gradient[1], int(gradient[2])), access.mode
