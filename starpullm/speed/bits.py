"""The bits that a build computes in a turn, as digests of tensors; the throughput gate compares those of two builds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from starpullm.checks.cases import PROMISES, Promise
from starpullm.checks.execution_order import execution_order
from starpullm.checks.result import MAX_LISTED, CheckResult, listed, passed_if
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import layer_name, tensor_digest
from starpullm.speed.workload import Workload
from starpullm.trainer import Trainer

_GROUPS = ("grads", "m", "v", "params")


@dataclass(frozen=True, kw_only=True)
class BuildBitsResult(CheckResult):
    """Whether two builds have computed the same bits; ``compared`` and ``measured`` count tensors.

    ``differing`` names the first ``MAX_LISTED`` of them, in the order of execution.
    """

    unit: str = "tensors"
    differing: tuple[str, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors that differ."""
        yield from listed(self.differing, int(self.measured or 0))


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


def check_build_bits(new: Mapping[str, str], baseline: Mapping[str, str], steps: int) -> BuildBitsResult:
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
    return BuildBitsResult(
        name="bits of the builds",
        outcome=passed_if(not differing),
        finding=f"{len(differing)} of {len(new)} tensors differ after {steps} steps{first}",
        compared=len(new),
        measured=len(differing),
        differing=tuple(differing[:MAX_LISTED]),
    )
