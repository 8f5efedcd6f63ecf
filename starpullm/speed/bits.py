"""The bits that a build computes in a turn, as digests of tensors; the throughput gate compares those of two builds."""

from __future__ import annotations

from collections.abc import Mapping

from starpullm.checks.cases import PROMISES, Promise
from starpullm.checks.execution_order import execution_order
from starpullm.checks.result import MAX_LISTED, Finding, Outcome, Result
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import layer_name, tensor_digest
from starpullm.speed.workload import Workload
from starpullm.trainer import Trainer

_GROUPS = ("grads", "m", "v", "params")


def has_fixed_bits(workload: Workload) -> bool:
    """Return whether two runs of a workload must have the same bits."""
    return workload.matmul == "strict" and PROMISES[workload.reduction] is not Promise.BOUNDED


def digest_tensors(trainer: Trainer) -> dict[str, str]:
    """Return the digests of gradients, m, v and parameters, in the order of execution; all ranks have to call it."""
    return {
        f"{group}/{layer_name(name, layer)}": tensor_digest(trainer.tensor(group, name, layer))
        for group, name, layer in execution_order(trainer.config.num_layers)
        if group in _GROUPS
    }


def check_build_bits(new: Mapping[str, str], baseline: Mapping[str, str], steps: int) -> Result:
    """Compare the digests of two builds after the same steps; passed: they are equal.

    Raises
    ------
    InvalidArgumentError
        If the builds have different tensors, or none.
    """
    if set(new) != set(baseline):
        unmatched = min(set(new) ^ set(baseline))
        raise InvalidArgumentError(f"bits of the builds: found {unmatched} in one of them, expected it in both")
    differing = [name for name in new if new[name] != baseline[name]]
    first = f"; the first is {differing[0]}" if differing else ""
    return Result(
        check="bits of the builds",
        outcome=Outcome.FAILED if differing else Outcome.PASSED,
        sentence=f"{len(differing)} of {len(new)} tensors differ after {steps} steps{first}",
        compared=len(new),
        unit="tensors",
        measured=len(differing),
        findings=tuple(map(Finding, differing[:MAX_LISTED])),
        count=len(differing),
    )
