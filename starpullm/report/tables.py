"""The tables of figures: parity by placement and record, and errors of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from starpullm.report.document import KINDS, Document, ending_of, grouped
from starpullm.report.failures import failure_anchor


class Row(NamedTuple):
    """Where the runs of a row took place."""

    partition: str
    ranks: int
    scheduler: str


class Column(NamedTuple):
    """What the runs of a column trained."""

    record: str
    sub_batches: int
    reduction: str


class Cell(NamedTuple):
    """The worst run of a placement: ``kind`` is one of `KINDS`; ``anchor`` leads to its failure."""

    kind: str
    text: str
    anchor: str = ""


def matrices(document: Document) -> list[dict[str, Any]]:
    """Return a matrix for each reference that runs were compared with; combinations that didn't run have no cell.

    A row is a placement, a column a record and a number of sub-batches; ``records`` are those of the columns, each with
    their number.
    """
    found: dict[str, dict[tuple[Row, Column], Cell]] = {}
    for number, test in enumerate(document["tests"]):
        for result in test["results"]:
            facts = result["facts"]
            if result["family"] == "parity" and facts.keys() >= {*Row._fields, *Column._fields}:
                row = Row(*(facts[name] for name in Row._fields))
                column = Column(*(facts[name] for name in Column._fields))
                llmc = f"llm.c in {facts['library']}" if facts.get("library") else "golden record"
                cells = found.setdefault(facts.get("reference", llmc), {})
                cell = _cell(result, test, number)
                cells[row, column] = max(cells.get((row, column), cell), cell, key=lambda each: KINDS.index(each.kind))
    return [_matrix(reference, cells) for reference, cells in found.items()]


def _matrix(reference: str, cells: Mapping[tuple[Row, Column], Cell]) -> dict[str, Any]:
    order = list(dict.fromkeys(column.record for _, column in cells))
    columns = sorted(
        {column for _, column in cells},
        key=lambda column: (order.index(column.record), column.reduction, column.sub_batches),
    )
    rows = list(dict.fromkeys(row for row, _ in cells))
    records = Counter(column.record for column in columns)
    return {"reference": reference, "rows": rows, "columns": columns, "records": records, "cells": cells}


def _cell(result: Mapping[str, Any], test: Mapping[str, Any], number: int) -> Cell:
    kind, ending = ending_of(result, test)
    text = f"{result['compared']:,} equal" if kind == "passed" else result["facts"].get("first") or ending
    return Cell(kind, text, failure_anchor(number) if test["outcome"] == "failed" else "")


def reductions_of(document: Document) -> list[dict[str, Any]]:
    """Return a row for each parameter: how many gradients were checked, how many are beyond their bounds, the worst."""
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
        row = {"tensor": tensor, "gradients": len(own), "beyond": sum(limits[0] > 1 for limits in own)}
        rows.append({**row, "largest": largest, "element": element, "test": test})
    return rows
