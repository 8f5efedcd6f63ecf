"""Training learns: repeated steps on one batch lower its loss."""

from __future__ import annotations

from starpullm.checks.cases import Case
from starpullm.checks.check import Check, Needs, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import case_trainer, local_batch

STEPS = 20


@check
class LossFalls(Check):
    """Train on the first batch of the seed again and again, and compare the last loss with the first."""

    family, unit = "reduction", "steps"
    claim = "training on one batch lowers its loss"
    fault = "training on one batch doesn't lower its loss"
    cannot_see = "a wrong gradient that still points downhill"
    needs = Needs(one_record=True)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Train."""
        with case_trainer(context, case) as trainer:
            batch = local_batch(trainer, case.seed, 0)
            first, *_, last = (float(trainer.step(*batch)) for _ in range(STEPS))
        falls = last < first  # false for NaN
        wrong = [] if falls else [Finding(f"loss {last:g} in step {STEPS}, {first:g} in step 1")]
        return self.result(compared=STEPS, findings=wrong, note=f"from {first:g} to {last:g}")
