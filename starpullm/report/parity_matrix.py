"""The parity matrix: a row for each placement, a column for each record and number of sub-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starpullm.report.document import Document
from starpullm.report.failures import failure_anchor


@dataclass(frozen=True)
class Row:
    """Where the runs of a row took place."""

    partition: str
    ranks: int
    scheduler: str


@dataclass(frozen=True)
class Column:
    """What the runs of a column trained."""

    record: str
    sub_batches: int
    reduction: str


@dataclass(frozen=True)
class Cell:
    """A run: ``kind`` is passed, failed or undecided; ``anchor`` leads to its failure."""

    kind: str
    text: str
    anchor: str


@dataclass(frozen=True)
class Matrix:
    """All parity runs against one reference; combinations that didn't run have no cell."""

    reference: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[Row, Column], Cell]

    @property
    def records(self) -> list[tuple[str, int]]:
        """The records, each with its number of columns."""
        counts: dict[str, int] = {}
        for column in self.columns:
            counts[column.record] = counts.get(column.record, 0) + 1
        return list(counts.items())

    @property
    def missing(self) -> int:
        """The number of combinations that didn't run."""
        return len(self.rows) * len(self.columns) - len(self.cells)


def matrices(document: Document) -> list[Matrix]:
    """Return a matrix for each reference that runs were compared with."""
    found: dict[str, dict[tuple[Row, Column], Cell]] = {}
    for number, test in enumerate(document["tests"]):
        for result in test["results"]:
            facts = result["facts"]
            if facts.keys() >= {"reference", *Row.__annotations__, *Column.__annotations__}:
                row = Row(**{name: facts[name] for name in Row.__annotations__})
                column = Column(**{name: facts[name] for name in Column.__annotations__})
                cells = found.setdefault(facts["reference"], {})
                cells[row, column] = _worse(cells.get((row, column)), _cell(result, number))
    return [_matrix(reference, cells) for reference, cells in found.items()]


def _matrix(reference: str, cells: Mapping[tuple[Row, Column], Cell]) -> Matrix:
    records = list(dict.fromkeys(column.record for _, column in cells))
    columns = sorted(
        dict.fromkeys(column for _, column in cells),
        key=lambda column: (records.index(column.record), column.reduction, column.sub_batches),
    )
    return Matrix(reference, tuple(dict.fromkeys(row for row, _ in cells)), tuple(columns), cells)


def _cell(result: Mapping[str, Any], test: int) -> Cell:
    if result["outcome"] == "passed":
        return Cell("passed", f"{result['compared']:,} equal", "")
    if result["outcome"] == "failed":
        return Cell("failed", result["facts"].get("first") or "differs", failure_anchor(test))
    return Cell("undecided", result["outcome"], "")


def _worse(one: Cell | None, other: Cell) -> Cell:
    return one if one is not None and one.kind == "failed" else other
