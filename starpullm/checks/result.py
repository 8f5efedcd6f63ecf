"""What every check returns: an outcome, how much was compared, what was found, and the only text of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, Self

import numpy as np

from starpullm.errors import InvalidArgumentError
from starpullm.processes.ranks import rank_list

MAX_LISTED = 20
"""At most this many findings are kept; their count is always complete."""


class Outcome(Enum):
    """How a check ended; only ``PASSED`` says that the claim holds."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"


class Finding(NamedTuple):
    """Something that is wrong: a sentence with its task or tensor, and rows such as what was expected and found."""

    sentence: str
    rows: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A verdict, which `starpullm.checks.check.Check.result` makes.

    ``compared`` counts what was compared; ``unit`` says what that is, in the plural, such as ``"tensors"``. The
    ``sentence`` says what the outcome rests on. ``measured`` and ``limit`` have one unit; without a measurement they
    count findings. ``findings`` are the first of ``count``, in the order in which they happened, because the first is
    nearest to the cause. ``where`` is the place of the run, ``ranks`` those that have this result if others have
    another one. ``facts`` are numbers and names for programs.
    """

    check: str
    outcome: Outcome
    compared: int
    unit: str = "comparisons"
    sentence: str = ""
    measured: float | None = None
    limit: float | None = 0
    findings: tuple[Finding, ...] = ()
    count: int = 0
    family: str = "own"
    claim: str = ""
    where: str = ""
    ranks: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a verdict on nothing: a fault that was found stands, but nothing else does.

        Raises
        ------
        InvalidArgumentError
            If nothing was compared, and that isn't the outcome.
        """
        if self.compared == 0 and self.outcome in (Outcome.PASSED, Outcome.INCONCLUSIVE):
            raise InvalidArgumentError(f"{self.check}: nothing was compared: {self.sentence}")

    def lines(self) -> list[str]:
        """Return the text: check, place, outcome and sentence, then the rows and the other findings."""
        place = "".join(f" {word} {of}" for word, of in (("of", self.where), ("on", self.ranks)) if of)
        lines = [f"{self.check}{place}: {self.outcome.value}: {self.sentence}"]
        for number, finding in enumerate(self.findings):
            if number:  # the first one is in the sentence
                lines.append(f"  {finding.sentence}")
            lines += [f"  {'  ' * bool(number)}{name}: {row}" for name, row in finding.rows.items()]
        if self.count > len(self.findings):
            lines.append(f"  … and {self.count - len(self.findings)} more")
        return lines

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values, by the names of the fields, and its lines."""
        found = {entry.name: json_value(getattr(self, entry.name)) for entry in fields(self)}
        findings = [finding._asdict() for finding in self.findings]
        return {**found, "findings": json_value(findings), "lines": self.lines()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the result that ``as_json`` has described."""
        known = {entry.name: content[entry.name] for entry in fields(cls)}
        findings = tuple(Finding(**entry) for entry in content["findings"])
        return cls(**{**known, "outcome": Outcome(content["outcome"]), "findings": findings})


def judged(
    *,
    check: str,
    unit: str,
    fault: str,
    compared: int,
    findings: Sequence[Finding] = (),
    count: int | None = None,
    measured: float | None = None,
    limit: float | None = 0,
    undecided: str = "",
    note: str = "",
    family: str = "own",
    claim: str = "",
    facts: Mapping[str, Any] | None = None,
) -> Result:
    """Return the verdict: failed if there is a finding, or if what was measured isn't within its limit.

    Parameters
    ----------
    check, family, claim
        Whose verdict.
    unit, compared
        How much was compared, and what that is.
    fault
        What is wrong if it fails.
    findings
        What is wrong; ``count`` says how many there are, if these are only the first.
    measured, limit
        In one unit; without a measurement, the number of findings and 0. NaN is beyond every limit.
    undecided
        Why there is no verdict: nothing is comparable, or if something was compared, it doesn't decide.
    note
        What there is to know of the run, whatever its outcome.
    facts
        For programs.
    """
    count = len(findings) if count is None else count
    beyond = measured is not None and not (limit is None or measured <= limit)
    if count or beyond:
        outcome = Outcome.FAILED
        first = findings[0].sentence if findings else f"found {measured:g}, expected at most {limit:g}"
        sentence = f"{fault} ({count} in {compared:,} {unit}): {first}"
    elif undecided:
        outcome, sentence = (Outcome.INCONCLUSIVE if compared else Outcome.NOT_COMPARABLE), undecided
    else:
        outcome, sentence = Outcome.PASSED, f"{compared:,} {unit} compared"
    return Result(
        check=check,
        outcome=outcome,
        compared=compared,
        unit=unit,
        sentence="; ".join(filter(None, (sentence, note))),
        measured=measured if measured is not None or undecided else count,
        limit=limit,
        findings=tuple(findings[:MAX_LISTED]),
        count=count,
        family=family,
        claim=claim,
        facts=facts or {},
    )


_OUTCOMES = [Outcome.FAILED, Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE, Outcome.PASSED]


def worst_of(results: Sequence[Result]) -> Result:
    """Return the first of the ranks' results with the worst outcome, and which ranks have the same one."""
    worst = min(results, key=lambda result: _OUTCOMES.index(result.outcome))
    same = [rank for rank, result in enumerate(results) if result.lines() == worst.lines()]
    ranks = "" if len(same) == len(results) else f"{rank_list(same)} of {len(results)}"
    return replace(worst, ranks=ranks)


def json_value(value: object) -> Any:
    """Return a field of a result as JSON values; a float that JSON can't represent becomes a string such as ``inf``."""
    match value:
        case Enum():
            return value.value
        case Mapping():
            return {str(key): json_value(entry) for key, entry in value.items()}
        case tuple() | list():
            return [json_value(entry) for entry in value]
        case np.ndarray() | np.generic():
            return json_value(value.tolist())
        case float() if not math.isfinite(value):
            return str(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {entry.name: json_value(getattr(value, entry.name)) for entry in fields(value)}
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"found {type(value).__name__}, expected a type that a result may contain")


# ---- Results of classes of their own ----


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The fields that results of classes of their own have: those of the probe."""

    name: str
    outcome: Outcome
    finding: str
    compared: int
    measured: float | None
    limit: float | None = 0
    unit: str = "comparisons"

    def __post_init__(self) -> None:
        """Refuse a verdict on nothing, as `Result` does."""
        if self.compared == 0 and self.outcome in (Outcome.PASSED, Outcome.INCONCLUSIVE):
            raise InvalidArgumentError(f"{self.name}: nothing was compared: {self.finding}")

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values, by the names of the fields."""
        return {entry.name: json_value(getattr(self, entry.name)) for entry in fields(self)}

    def describe(self) -> list[str]:
        """Return the lines of a report: the outcome, then the details."""
        return [f"{self.name}: {self.outcome.value}: {self.finding}", *(f"  {line}" for line in self.detail_lines())]

    def detail_lines(self) -> Iterator[str]:
        """Yield the lines that ``describe`` adds to the first one."""
        yield from ()


def listed(findings: Sequence[object], count: int, prefix: str = "") -> Iterator[str]:
    """Yield a line for each finding, and one that says how many of ``count`` aren't among them, if any."""
    yield from (f"{prefix}{finding}" for finding in findings)
    if count > len(findings):
        yield f"… and {count - len(findings)} more"
