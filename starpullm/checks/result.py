"""What every check returns: an outcome, how much was compared, what was measured, and its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from starpullm.errors import InvalidArgumentError

MAX_LISTED = 20
"""At most this many findings of a kind are listed; their count is always complete."""


class Outcome(Enum):
    """How a check ended; only ``PASSED`` says that the claim holds."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The fields that all results have; the class of each check adds others.

    ``name`` is that of the check, and ``finding`` a short description of what it found. ``compared`` counts what the
    check has compared; ``unit`` says what that is, in the plural, such as ``"tensors"``. ``measured`` and ``limit``
    have the same unit: the class of the check says which, or they count faults. ``measured`` is None if nothing was
    measured.
    """

    name: str
    outcome: Outcome
    finding: str
    compared: int
    measured: float | None
    limit: float | None = 0
    unit: str = "comparisons"

    def __post_init__(self) -> None:
        """Refuse a verdict on nothing: a fault that was found stands, but nothing else does.

        Raises
        ------
        InvalidArgumentError
            If nothing was compared, and that isn't the outcome.
        """
        if self.compared == 0 and self.outcome in (Outcome.PASSED, Outcome.INCONCLUSIVE):
            raise InvalidArgumentError(f"{self.name}: nothing was compared: {self.finding}")

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values, by the names of the fields."""
        return {field.name: json_value(getattr(self, field.name)) for field in fields(self)}

    def describe(self) -> list[str]:
        """Return the lines of a report: the outcome, then the details."""
        return [f"{self.name}: {self.outcome.value}: {self.finding}", *(f"  {line}" for line in self.detail_lines())]

    def detail_lines(self) -> Iterator[str]:
        """Yield the lines that ``describe`` adds to the first one."""
        yield from ()


def passed_if(holds: bool) -> Outcome:
    """Return ``PASSED`` or ``FAILED``."""
    return Outcome.PASSED if holds else Outcome.FAILED


def listed(findings: Sequence[object], count: int, prefix: str = "") -> Iterator[str]:
    """Yield a line for each finding, and one that says how many of ``count`` aren't among them, if any."""
    yield from (f"{prefix}{finding}" for finding in findings)
    if count > len(findings):
        yield f"… and {count - len(findings)} more"


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
            return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise TypeError(f"found {type(value).__name__}, expected a type that a result may contain")
