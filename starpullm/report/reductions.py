"""The errors of gradients as fractions of their bounds, by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starpullm.report.document import Document


@dataclass(frozen=True)
class TensorRow:
    """All gradients of one parameter: the fractions of their bounds, the largest, and where it is."""

    tensor: str
    ratios: tuple[float, ...]
    largest: float
    beyond: int
    element: str
    test: str


def reductions_of(document: Document) -> list[TensorRow]:
    """Return the errors of all checked gradients."""
    found: dict[str, list[tuple[float, Any, str]]] = {}
    for test, entry in _errors(document):
        found.setdefault(entry["tensor"].partition("[")[0], []).append((float(entry["ratio"]), entry, test))
    rows = []
    for tensor, errors in found.items():
        ratios = tuple(ratio for ratio, _, _ in errors)
        largest, worst, test = max(errors, key=lambda error: error[0])
        element = f"{worst['tensor']}{worst['index']}: {worst['actual']}, expected {worst['expected']}"
        rows.append(TensorRow(tensor, ratios, largest, sum(ratio > 1 for ratio in ratios), element, test))
    return rows


def _errors(document: Document) -> Iterator[tuple[str, Any]]:
    for test in document["tests"]:
        for result in test["results"]:
            yield from ((test["test"], entry) for entry in result["facts"].get("tensors", ()))
