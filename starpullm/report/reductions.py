"""The errors of gradients as fractions of their bounds, by parameter."""

from __future__ import annotations

from typing import NamedTuple

from starpullm.report.document import Document, grouped


class TensorRow(NamedTuple):
    """All gradients of one parameter: how many, how many beyond their bounds, the largest fraction, and where it is."""

    tensor: str
    gradients: int
    beyond: int
    largest: float
    element: str
    test: str


def reductions_of(document: Document) -> list[TensorRow]:
    """Return a row for each parameter of which gradients were checked."""
    errors = [
        (float(entry["ratio"]), entry, test["test"])
        for test in document["tests"]
        for result in test["results"]
        for entry in result["facts"].get("tensors", ())
    ]
    rows = []
    for tensor, own in grouped(errors, lambda error: error[1]["tensor"].partition("[")[0]).items():
        largest, worst, test = max(own, key=lambda error: error[0])
        element = f"{worst['tensor']}{worst['index']}: {worst['actual']}, expected {worst['expected']}"
        rows.append(TensorRow(tensor, len(own), sum(of[0] > 1 for of in own), largest, element, test))
    return rows
