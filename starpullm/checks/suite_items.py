"""What the suite runs: every registered check with its cases and placements, and what is left out of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Arrays, Check, all_checks, run_check
from starpullm.checks.left_out import LeftOut
from starpullm.checks.result import Result
from starpullm.options import RuntimeConfiguration


class Item(NamedTuple):
    """A case of a check on a placement, which is None if the check has its own ones."""

    check: Check
    case: Case
    placement: RuntimeConfiguration | None
    ranks: int = 1
    parts: Sequence[tuple[RuntimeConfiguration, Case]] = ()
    """The runs that are compared with each other, if the check compares several."""

    def __str__(self) -> str:
        place = self.placement.id if self.placement else ""
        return "-".join(filter(None, (self.check.name.replace(" ", "_"), str(self.case), place)))

    def unfinished(self) -> Result:
        """Return what stands for the result of a run that has none."""
        return self.check.unfinished(self.case, self.placement)

    def run(self, ask: Callable[..., Any]) -> Result:
        """Return the result of the one run, or of the comparison of all; ``ask`` is a pool's, or like it."""
        if not self.parts:
            result: Result = self._ask(ask, self.placement, self.case)
            return result
        arrays: dict[str, Arrays] = {}
        for placement, case in self.parts:
            found = self._ask(ask, placement, case)
            if isinstance(found, Result):  # a run that is wrong by itself
                return replace(found, check=self.check.name, claim=self.check.claim)
            arrays[f"{case} on {placement}"] = found
        return replace(self.check.together(arrays), where=str(self.case))

    def _ask(self, ask: Callable[..., Any], placement: RuntimeConfiguration | None, case: Case) -> Any:
        request = partial(run_check, check=self.check, case=case)
        return ask(placement, request, ranks=self.ranks, environment=self.check.environment)


def items(options: SuiteOptions, ranks: int) -> Iterator[Item | LeftOut]:
    """Yield what is run on so many ranks; and instead of what isn't, why."""
    fitting = [check for check in all_checks().values() if check.needs.allow(ranks)]
    others = ", ".join(name for name, check in all_checks().items() if check not in fitting)
    if ranks > 1:
        yield LeftOut(f"checks of one process: {others}", f"over {ranks} ranks, only checks of what ranks do run")
    else:
        yield LeftOut(f"checks of several ranks: {others}", "one process")
    for check in fitting:
        cases = list(check.cases(options, ranks))
        if not cases:
            yield LeftOut(check.name, check.without_cases)
        for case in cases:
            for placement in check.placements(options, ranks):
                parts = check.parts(options, ranks, case, placement)
                if len(parts) == 1:
                    yield LeftOut(f"{check.name} of {case}", "one placement has nothing to compare with")
                else:
                    yield Item(check, case, placement, ranks, parts)
