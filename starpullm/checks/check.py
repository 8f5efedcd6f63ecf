"""The one description of a check: what it claims, what it needs, its cases, its run and its verdict.

Items of the suite, lines of the terminal, JUnit, the report and the table of docs/checks.md are made from it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm import checks
from starpullm.binding import allocations
from starpullm.checks.cases import Case, Promise, SuiteOptions, one_record, record_cases, sharing_cases
from starpullm.checks.check_context import CheckContext, StandaloneContext
from starpullm.checks.result import MAX_LISTED, Finding, Outcome, Result
from starpullm.errors import InvalidArgumentError
from starpullm.options import RuntimeConfiguration
from starpullm.processes.progress import report_phase

Arrays: TypeAlias = Mapping[str, NDArray[np.float32]]
"""What a run leaves to be compared with other runs, by name."""

ALL = tuple(Promise)


class Where(Enum):
    """The placements of the cases of a check that has a runtime."""

    EACH = "on each placement"
    ONE_WORKER = "on 1x1"
    TOGETHER = "on all placements, which are compared with each other"


class Needs(NamedTuple):
    """What a check needs to be run."""

    where: Where = Where.EACH
    ranks: tuple[int, int | None] = (1, None)
    """The least and the largest number; None: any."""
    promises: Sequence[Promise] = ALL
    """What a reduction must promise to be a case."""
    light: bool = False
    """The tensors of two runs must fit into memory."""
    sharing: bool = False
    """Cases whose blocks share memory are among its cases."""
    one_record: bool = False
    """What is compared doesn't depend on the record."""
    counts_allocations: bool = False

    def allow(self, ranks: int) -> bool:
        """Return whether the check can be run on so many ranks."""
        least, most = self.ranks
        return least <= ranks and (most is None or ranks <= most)


class Check:
    """A claim about training, and how it is checked; subclasses are registered by `check`, and named by their class.

    The docstring says what is compared with what. A check of ``Where.TOGETHER`` returns arrays from its run.
    """

    family: str
    """The marker of its tests, without ``starpullm_``."""
    claim: str
    """What holds if it passes."""
    fault: str
    """What is wrong if it fails."""
    unit: str
    """What it compares, in the plural."""
    cannot_see: str
    """Which mistakes it passes."""
    needs: ClassVar[Needs] = Needs()
    without_cases: str = "none of what was chosen is a case for it"
    """Why the check is left out if it has no case."""

    @property
    def name(self) -> str:
        """The words of the class's name."""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", type(self).__name__).lower()

    @property
    def environment(self) -> Mapping[str, str]:
        """What the environment of its process has in addition to that of others."""
        return allocations.preloading() if self.needs.counts_allocations else {}

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield what is run on so many ranks: records, sub-batches and reductions that `needs` allows."""
        if self.needs.one_record:
            yield from one_record(options, ranks)
            return
        yield from record_cases(options, ranks, self.needs.promises, light=self.needs.light)
        if self.needs.sharing:
            yield from sharing_cases(options, ranks)

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[RuntimeConfiguration | None]:
        """Return the placements of each case; None: the check chooses them itself."""
        places = options.configurations(ranks)
        if self.needs.where is Where.ONE_WORKER:
            return [places[0]._replace(partition="1x1")]
        return places if self.needs.where is Where.EACH else [None]

    def parts(
        self, options: SuiteOptions, ranks: int, case: Case, placement: RuntimeConfiguration | None
    ) -> Sequence[tuple[RuntimeConfiguration, Case]]:
        """Return the runs whose arrays are compared, the one that is compared with first; none if it's one run."""
        return ()

    def run(self, context: Any, case: Case) -> Result | Arrays:
        """Run a case in a `CheckContext`; over ranks on all, and the worst result counts."""
        raise NotImplementedError

    def together(self, parts: Mapping[str, Arrays]) -> Result:
        """Compare the arrays of all parts, which are named by where they ran."""
        raise NotImplementedError

    def unfinished(self, case: Case, placement: RuntimeConfiguration | None) -> Result:
        """Return what stands for the result of a run that has none."""
        facts = {**asdict(case), **(placement._asdict() if placement else {}), "record": Path(case.record).stem}
        where = " on ".join(filter(None, (str(case), str(placement or ""))))
        none = self.result(compared=0, undecided="no result", limit=None, **facts)
        return replace(none, outcome=Outcome.NO_RESULT, sentence="", where=where)

    def result(
        self,
        *,
        compared: int,
        findings: Sequence[Finding] = (),
        count: int | None = None,
        measured: float | None = None,
        limit: float | None = 0,
        undecided: str = "",
        note: str = "",
        **facts: Any,
    ) -> Result:
        """Return the verdict: failed if there is a finding, or if what was measured isn't within its limit.

        ``compared`` says how much, in the check's unit. ``findings`` are what is wrong; ``count`` says how many there
        are, if these are only the first. ``measured`` and ``limit`` have one unit; without a measurement they are the
        number of findings and 0, and NaN is beyond every limit. ``undecided`` says why there is no verdict: nothing is
        comparable, or if something was compared, it doesn't decide. ``note`` is what there is to know of the run,
        whatever its outcome; ``facts`` are for programs.
        """
        count = len(findings) if count is None else count
        beyond = measured is not None and not (limit is None or measured <= limit)
        if count or beyond:
            outcome = Outcome.FAILED
            sentence = f"{self.fault} ({count} in {compared:,} {self.unit})"
            sentence += "" if findings else f": found {measured:g}, expected at most {limit:g}"
        elif undecided:
            outcome, sentence = (Outcome.INCONCLUSIVE if compared else Outcome.NOT_COMPARABLE), undecided
        else:
            outcome, sentence = Outcome.PASSED, f"{compared:,} {self.unit} compared"
        return Result(
            check=self.name,
            outcome=outcome,
            compared=compared,
            unit=self.unit,
            sentence="; ".join(filter(None, (sentence, note))),
            measured=measured if measured is not None or undecided else count,
            limit=limit,
            findings=tuple(findings[:MAX_LISTED]),
            count=count,
            family=self.family,
            claim=self.claim,
            facts=facts,
        )


class StandaloneCheck(Check):
    """A check in a process that has no runtime yet; its run gets a `StandaloneContext`."""

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[None]:
        """Return that there is none."""
        return [None]


def run_check(context: CheckContext | StandaloneContext, *, check: Check, case: Case) -> Any:
    """Run a case of a check, and return its arrays, or its result, which says where."""
    report_phase(f"running {check.name} of {case}")
    found = check.run(context, case)
    if isinstance(found, Result):
        return replace(found, where=" on ".join(filter(None, (str(case), str(context)))))
    return found


_REGISTERED: dict[str, Check] = {}

C = TypeVar("C", bound=type[Check])


def check(kind: C) -> C:
    """Register a check, and refuse one that doesn't say what it is."""
    for text in ("family", "claim", "fault", "unit", "cannot_see"):
        if not getattr(kind, text, ""):
            raise InvalidArgumentError(f"{kind.__name__}: found no {text}, expected a sentence or a word")
    found = kind()
    if found.name in _REGISTERED:
        raise InvalidArgumentError(f"{found.name}: found two checks of this name, expected one")
    _REGISTERED[found.name] = found
    return kind


def all_checks() -> Mapping[str, Check]:
    """Return the checks of the package by name, in the order in which the suite runs them."""
    modules = [f"{checks.__name__}.{name}" for name in checks.MODULES]
    for module in modules:
        importlib.import_module(module)
    # They import each other, so the order of registration is another one.
    own = [found for module in modules for found in _REGISTERED.values() if type(found).__module__ == module]
    return {found.name: found for found in own}
