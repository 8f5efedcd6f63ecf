"""What every check returns: an outcome, what was measured, and its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

__all__ = ["CheckResult", "Outcome", "json_value"]


class Outcome(Enum):
    """How a check ended; only ``PASSED`` says that the claim holds."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The fields that all results have; the class of each check adds others.

    ``name`` is that of the check, and ``finding`` a short description of what it found. ``measured`` and ``limit`` have
    the same unit, which the check's class states; they are None if nothing was measured.
    """

    name: str
    outcome: Outcome
    finding: str
    measured: float | None
    limit: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values, by the names of the fields."""
        return {field.name: json_value(getattr(self, field.name)) for field in fields(self)}

    def describe(self) -> list[str]:
        """Return the lines of a report: the outcome, then the details."""
        return [f"{self.name}: {self.outcome.value}: {self.finding}", *(f"  {line}" for line in self.detail_lines())]

    def detail_lines(self) -> Iterator[str]:
        """Yield the lines that ``describe`` adds to the first one."""
        yield from ()


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
