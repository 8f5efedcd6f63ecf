"""What every check returns: an outcome, how much was compared, what was found, and the only text of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from starpullm.errors import InvalidArgumentError
from starpullm.processes.ranks import rank_list

MAX_LISTED = 20
"""At most this many findings are kept; their count is always complete."""


class Outcome(Enum):
    """How a check ended, the worst first; only ``PASSED`` says that the claim holds."""

    FAILED = "failed"
    NO_RESULT = "no result"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    PASSED = "passed"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: a sentence, of which task or tensor, of which kind, and labelled evidence for it."""

    sentence: str
    evidence: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return "  ".join(filter(None, (self.kind, self.where, self.sentence)))

    def lines(self) -> list[str]:
        """Return the only text of a finding: one line, and one for each piece of evidence."""
        width = max(map(len, self.evidence), default=0)
        return [str(self), *(f"  {label:{width}}  {text}" for label, text in self.evidence.items())]


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
        """Refuse a verdict on nothing, by an `InvalidArgumentError`; only a fault that was found stands."""
        if self.compared == 0 and self.outcome in (Outcome.PASSED, Outcome.INCONCLUSIVE):
            raise InvalidArgumentError(f"{self.check}: nothing was compared: {self.sentence}")

    def lines(self) -> list[str]:
        """Return the text: check, place, outcome and sentence, then the details."""
        place = "".join(f" {word} {value}" for word, value in (("of", self.where), ("on", self.ranks)) if value)
        return [
            f"{self.check}{place}: {self.outcome.value}: {self.sentence}",
            *(f"  {line}" for line in self.details()),
        ]

    def first_lines(self, most: int) -> list[str]:
        """Return at most so many lines; another one says how many are missing."""
        lines = self.lines()
        return [*lines[:most], f"  … and {len(lines) - most} more lines"] if len(lines) > most else lines

    def details(self) -> Iterator[str]:
        """Yield the findings."""
        for finding in self.findings:
            yield from finding.lines()
        if self.count > len(self.findings):
            yield f"… and {self.count - len(self.findings)} more"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values by the names of its fields, and its lines; a subclass's fields are facts."""
        own = {entry.name for entry in fields(Result)}
        found = {entry.name: json_value(getattr(self, entry.name)) for entry in fields(self)}
        common = {name: value for name, value in found.items() if name in own}
        others = {name: value for name, value in found.items() if name not in own}
        return {**common, "facts": common["facts"] | others, "lines": self.lines()}


def worst_of(results: Sequence[Result]) -> Result:
    """Return the first of the ranks' results with the worst outcome, and which ranks have the same one."""
    worst = min(results, key=lambda result: list(Outcome).index(result.outcome))
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
        case tuple() if hasattr(value, "_asdict"):
            return json_value(value._asdict())
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
