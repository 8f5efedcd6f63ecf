"""What is read in a report of gcovr, and the table that is made of it; nothing is built."""

from __future__ import annotations

from typing import Any

import pytest

from .report import Counts, Covered, read_report, table, write_page


def line(number: int, count: int, *branches: int, **more: bool) -> dict[str, Any]:
    return {"line_number": number, "count": count, "branches": [{"count": taken} for taken in branches], **more}


def test_a_line_of_several_levels_counts_once() -> None:
    """It ran if it ran at one of them, and so did its branches."""
    lines = [line(7, 0, 0, 0), line(7, 2, 2, 0), line(8, 0), line(9, 1), line(10, 0, **{"gcovr/noncode": True})]
    report = {"files": [{"file": "native/src/a.c", "lines": lines}, {"file": "native/src/b.c", "lines": [line(1, 5)]}]}
    assert read_report(report) == {
        "native/src/a.c": Covered(Counts(2, 3), Counts(1, 2), (8,)),
        "native/src/b.c": Covered(Counts(1, 1), Counts(0, 0), ()),
    }


def test_table() -> None:
    first = {"native/src/a.c": Covered(Counts(1, 4), Counts(1, 2), (1, 2, 3))}
    more = first | {"native/src/b.c": Covered(Counts(4, 4), Counts(0, 0), ())}
    assert list(table({"suite": first, "+ ctests": more})) == [
        "| file | lines | suite: lines | branches | + ctests: lines | branches |",
        "|---|---:|---:|---:|---:|---:|",
        "| a.c | 4 | 25 % | 50 % | 25 % | 50 % |",
        "| b.c | 4 | – | – | 100 % | – |",
        "| **all** | 8 | 25 % | 50 % | 62 % | 50 % |",
    ]


def test_the_page_keeps_what_is_around_the_table() -> None:
    page = "before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n"
    new = write_page(page, ["| a |"], "head")
    assert new == "before\n<!-- table: begin -->\nhead\n\n| a |\n<!-- table: end -->\nafter\n"
    assert write_page(new, ["| a |"], "head") == new
    with pytest.raises(SystemExit):
        write_page("no marks", [], "head")
