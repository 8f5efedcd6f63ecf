"""The parity matrix: a row for each placement, a column for each record and number of sub-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from starpullm.report.document import Document
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
    """A run: ``kind`` is passed, failed or undecided; ``anchor`` leads to its failure."""

    kind: str
    text: str
    anchor: str


class Matrix(NamedTuple):
    """All parity runs against one reference; ``records`` are those of the columns, each with their number.

    Combinations that didn't run have no cell.
    """

    reference: str
    rows: list[Row]
    columns: list[Column]
    records: Mapping[str, int]
    cells: Mapping[tuple[Row, Column], Cell]


def matrices(document: Document) -> list[Matrix]:
    """Return a matrix for each reference that runs were compared with."""
    found: dict[str, dict[tuple[Row, Column], Cell]] = {}
    for number, test in enumerate(document["tests"]):
        for result in test["results"]:
            facts = result["facts"]
            if facts.keys() >= {"reference", *Row._fields, *Column._fields}:
                row = Row(*(facts[name] for name in Row._fields))
                column = Column(*(facts[name] for name in Column._fields))
                cells = found.setdefault(facts["reference"], {})
                if (row, column) not in cells or cells[row, column].kind != "failed":
                    cells[row, column] = _cell(result, number)
    return [_matrix(reference, cells) for reference, cells in found.items()]


def _matrix(reference: str, cells: Mapping[tuple[Row, Column], Cell]) -> Matrix:
    order = list(dict.fromkeys(column.record for _, column in cells))
    columns = sorted(
        {column for _, column in cells}, key=lambda of: (order.index(of.record), of.reduction, of.sub_batches)
    )
    rows = list(dict.fromkeys(row for row, _ in cells))
    return Matrix(reference, rows, columns, Counter(column.record for column in columns), cells)


def _cell(result: Mapping[str, Any], test: int) -> Cell:
    if result["outcome"] == "passed":
        return Cell("passed", f"{result['compared']:,} equal", "")
    if result["outcome"] == "failed":
        return Cell("failed", result["facts"].get("first") or "differs", failure_anchor(test))
    return Cell("undecided", result["outcome"], "")
