"""What every check returns: an outcome that is never more than what was shown, with what was measured and its limit.

The modules of this package build on it; the command line and reports read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

__all__ = ["CheckResult", "Outcome", "json_value"]


class Outcome(Enum):
    """How a check ended; only ``PASSED`` says that the claim held."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_COMPARABLE = "not comparable"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The common part of all results; each check's own class adds its details as fields.

    ``name`` says which check it was and ``finding`` in a few words what it found. ``measured`` and ``limit`` have the
    same unit, which the check's class states; they are None where nothing was measured.
    """

    name: str
    outcome: Outcome
    finding: str
    measured: float | None
    limit: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names of the fields."""
        return {field.name: json_value(getattr(self, field.name)) for field in fields(self)}

    def describe(self) -> list[str]:
        """Return the lines that tell a person: the outcome, then what stands behind it."""
        return [f"{self.name}: {self.outcome.value}: {self.finding}", *(f"  {line}" for line in self.detail_lines())]

    def detail_lines(self) -> Iterator[str]:
        """Yield what ``describe`` shows below its first line."""
        yield from ()


def json_value(value: object) -> Any:
    """Return a result's field as JSON values; a float that JSON can't write becomes a text such as ``inf``."""
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
            raise TypeError(f"found {type(value).__name__}, expected what a result may hold")
