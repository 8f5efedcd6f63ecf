"""What the suite runs: every registered check with its cases and placements, and what is left out of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Check, Where, all_checks
from starpullm.checks.left_out import LeftOut
from starpullm.options import RuntimeConfiguration


class Item(NamedTuple):
    """A case of a check on a placement, which is None if the check has its own ones."""

    check: Check
    case: Case
    placement: RuntimeConfiguration | None
    ranks: int
    parts: Sequence[tuple[RuntimeConfiguration, Case]]
    """The runs that are compared with each other; of a check of ``Where.TOGETHER``."""

    def __str__(self) -> str:
        place = self.placement.id if self.placement else ""
        return "-".join(filter(None, (self.check.name.replace(" ", "_"), str(self.case), place)))


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
                together = check.needs.where is Where.TOGETHER
                parts = check.parts(options, ranks, case, placement) if together else ()
                if together and len(parts) < 2:
                    yield LeftOut(f"{check.name} of {case}", "one placement has nothing to compare with")
                else:
                    yield Item(check, case, placement, ranks, parts)
