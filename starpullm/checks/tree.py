"""The order in which the reduction ``tree`` adds the gradients of sub-batches, read off a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from starpullm.checks.cases import Case, Promise
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.place import Place
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import trace_steps, traced_trainer
from starpullm.trace import AccessMode, TaskRecord, Trace

Sum: TypeAlias = "int | tuple[Sum, Sum]"
"""A sub-batch's own gradient, or the sum of two."""

_GRADIENT = re.compile(r"grads/(.+)#(\d+)$")


def expected_sum(first: int, count: int) -> Sum:
    """Return the sum of ``count`` sub-batches from ``first`` on: the largest power of two below, and the rest."""
    if count == 1:
        return first
    half = 1 << (count - 1).bit_length() - 1
    return expected_sum(first, half), expected_sum(first + half, count - half)


@check
class OrderOfTheTree(Check):
    """Compare, for each gradient of each step, the sum that is used for its update with the tree of numerics.md.

    Passed: each update has read sub-batch 0's gradient after the additions that make it the expected sum.
    """

    family, unit = "reduction", "sums"
    claim = "the sum that each update reads was added in the described shape"
    fault = "a sum has another shape than the one that is described"
    cannot_see = "what an addition computes (kernel bits), and whether it is true what tasks declare (accesses)"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1), promises=(Promise.FIXED_BITS,))

    def run(self, place: Place, case: Case) -> Result:
        """Trace some steps."""
        with traced_trainer(place, case) as trainer:
            trace = trace_steps(trainer, case.seed)
        return self.judge(trace, case.sub_batches * place.runtime.ranks)

    def judge(self, trace: Trace, sub_batches: int) -> Result:
        """Return the verdict on a trace of whole steps; the sub-batches are those of all ranks."""
        expected = expected_sum(0, sub_batches)
        sums: dict[str, dict[int, Sum]] = {}
        findings: list[Finding] = []
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
                    findings.append(
                        Finding(f"{to}, step {task.step}: found the gradient of {other} added, expected its own")
                    )
            elif task.operation == "adamw_update":
                for (name, s), _ in gradients:
                    found = sums.get(name, {}).get(s, s)
                    compared += 1
                    if found != expected:
                        sentence = f"found {sum_text(found)}, expected {sum_text(expected)}"
                        findings.append(Finding(f"{name}, step {task.step}: {sentence}"))
                for (name, _), _ in gradients:
                    sums.pop(name, None)
        return self.result(compared=compared, findings=findings, note=f"of {sub_batches} sub-batches")


def sum_text(of: Sum) -> str:
    """Return a sum in brackets, such as ``((0 + 1) + 2)``."""
    return str(of) if isinstance(of, int) else f"({sum_text(of[0])} + {sum_text(of[1])})"


def _gradients(task: TaskRecord) -> Iterator[tuple[tuple[str, int], AccessMode]]:
    """Yield tensor, sub-batch and mode of each gradient that a task accesses."""
    for access in task.accesses:
        gradient = _GRADIENT.match(access.handle.name)
        if gradient:
            yield (gradient[1], int(gradient[2])), access.mode
