"""Several runs have the same bits, wherever they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starpullm.checks.bits import compare_bits
from starpullm.checks.cases import PROMISES, REPRODUCIBLE, Case, Promise, SuiteOptions
from starpullm.checks.check import Arrays, Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import case_trainer, local_batch, named_tensors
from starpullm.errors import InvalidArgumentError
from starpullm.options import RuntimeConfiguration


class SameBits(Check):
    """Compare the tensors of all runs with those of the first one, bit for bit."""

    unit = "tensors"

    def together(self, parts: Mapping[str, Arrays]) -> Result:
        """Return the verdict on the tensors of runs, by names that say how they ran."""
        (first, expected), *others = parts.items()
        findings: list[Finding] = []
        facts: dict[str, Any] = {}
        for run, tensors in others:
            if set(tensors) != set(expected):
                raise InvalidArgumentError(f"{run}: found tensors {sorted(tensors)}, expected {sorted(expected)}")
            for tensor, values in expected.items():
                difference = compare_bits(values, tensors[tensor])
                if difference:
                    findings.append(
                        Finding(f"compared with {first}", difference.evidence(), f"{tensor} of {run}", "differs")
                    )
                    facts = facts or difference.facts()
        compared = len(expected) * len(others)
        return self.result(compared=compared, findings=findings, note=f"{len(parts)} runs", runs=list(parts), **facts)


@check
class BitStability(SameBits):
    """Compare the gradients of all partitions, schedulers and ranks; of ``ordered`` also of all numbers of sub-batches.

    Several ranks are also compared with one process that has the sub-batches of all of them.
    """

    family = "reduction"
    claim = "gradients have the same bits on all placements and ranks"
    fault = "gradients have other bits on another placement"
    cannot_see = "a mistake that all placements share (parity)"
    needs = Needs(Where.TOGETHER, promises=REPRODUCIBLE)

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the numbers of sub-batches whose bits must be equal."""
        for record in options.records:
            counts = options.sub_batches(record, ranks)
            for reduction in options.reductions:
                if PROMISES[reduction] is Promise.BITWISE and counts:
                    yield Case(record, reduction=reduction, seed=options.seed, counts=counts)
                elif PROMISES[reduction] is Promise.FIXED_BITS:
                    shared = [count for count in counts if ranks * count > 1]
                    yield from (
                        Case(record, reduction=reduction, seed=options.seed, counts=[count]) for count in shared
                    )

    def parts(
        self, options: SuiteOptions, ranks: int, case: Case, placement: RuntimeConfiguration | None
    ) -> Sequence[tuple[RuntimeConfiguration, Case]]:
        """Return all placements with all numbers of sub-batches."""
        places = [(place, count) for place in options.configurations(ranks) for count in case.counts]
        if ranks > 1:
            places += [(place, ranks * count) for place in options.configurations() for count in case.counts]
        return [(place, replace(case, sub_batches=count, counts=())) for place, count in places]

    def run(self, context: CheckContext, case: Case) -> Arrays:
        """Return all gradients of the second step: those of the first must not be part of them."""
        with case_trainer(context, case) as trainer:
            for number in range(2):
                trainer.step(*local_batch(trainer, case.seed, number))
            return named_tensors(trainer, "grads")
