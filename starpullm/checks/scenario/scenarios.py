"""Random sequences of calls, after which trainers are compared with a plain model that made the same calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Needs, StandaloneCheck, check
from starpullm.checks.check_context import StandaloneContext, environment
from starpullm.checks.result import Finding, Result
from starpullm.checks.scenario.call_sequence import LEVELS, SIMD_VARIABLE, CallSequence, draw, run_sequence

SEQUENCES, OVER_RANKS = 4, 3
"""Sequences of a case. A case takes 3 to 5 s (2 cores, AMD EPYC, 2026-11-28); the suite's limit is 60 s."""

PARTS = 3
"""Number of cases of a SIMD level, on one rank."""


@check
class Scenarios(StandaloneCheck):
    """Run random sequences of calls: all that can be read of trainers is compared with a plain model that did the same.

    A sequence has sizes, a partition, a scheduler and calls: steps, several in flight, evaluations, states and
    checkpoints that are saved, closed and resumed from with other options, a second trainer, refusals. The plain model
    is one C file, ``native/plain/gpt2.c``. A failure names the seed, with which ``starpullm scenario`` shortens it.
    """

    family, unit = "scenario", "comparisons"
    claim = "in random sequences of calls, trainers have a plain sequential model's bits and leave nothing in memory"
    fault = "a trainer differs from a plain sequential model"
    cannot_see = "calls and sizes that weren't drawn; how long it takes"
    needs = Needs(counts_allocations=True)

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield cases for the chosen SIMD level, mostly the machine's best, and as many for the plain kernels."""
        parts = range(1, 1 + (PARTS if ranks == 1 else 1))
        yield from (Case(what=f"{level or 'best'}-{part}", seed=options.seed) for level in LEVELS for part in parts)

    def run(self, context: StandaloneContext, case: Case) -> Result:
        """Run the sequences of seeds from the case's on."""
        ranks = context.comm.Get_size() if context.comm else 1
        count, parts = (SEQUENCES, PARTS) if ranks == 1 else (OVER_RANKS, 1)
        level, _, part = case.what.partition("-")
        first = len(LEVELS) * count * (parts * (case.seed - 1) + int(part) - 1) + ["best", "ref"].index(level)
        sequences = [draw(first + number * len(LEVELS), ranks) for number in range(count)]
        with environment(**of_level(sequences[0].simd)):
            return self.of(context, sequences)

    def of(self, context: StandaloneContext, sequences: Sequence[CallSequence], progress: Path | None = None) -> Result:
        """Run sequences of one SIMD level until one ends badly; the file ``progress`` has the present one's number."""
        compared = 0
        for number, sequence in enumerate(sequences):
            if progress is not None and not (context.comm and context.comm.Get_rank()):
                progress.write_text(str(number))
            ending = run_sequence(sequence, context.directory, context.comm)
            compared += ending.compared
            if ending.kind:
                finding = Finding(ending.sentence)
                return self.result(compared=compared, findings=[finding], number=number, kind=ending.kind)
        return self.result(compared=compared, note=f"{len(sequences)} sequences")


def of_level(simd: str) -> dict[str, str]:
    """Return the environment for the sequences of a SIMD level."""
    return {SIMD_VARIABLE: simd} if simd else {}


def run_sequences(context: StandaloneContext, *, sequences: Sequence[CallSequence], progress: Path) -> Result:
    """Run sequences in a child."""
    return Scenarios().of(context, sequences, progress)
