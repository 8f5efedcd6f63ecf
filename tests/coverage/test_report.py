"""What is read in a report of gcovr, and what is printed of it; nothing is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .report import Counts, Covered, Line, missing, read_report, table


def line(number: int, count: int, *branches: int, **more: bool) -> dict[str, Any]:
    return {"line_number": number, "count": count, "branches": [{"count": taken} for taken in branches], **more}


def covered(*lines: tuple[int, bool] | tuple[int, bool, Counts]) -> Covered:
    return Covered({number: Line(*rest) for number, *rest in lines})


def test_a_line_of_several_levels_counts_once() -> None:
    """It ran if it ran at one of them, and so did its branches."""
    lines = [line(7, 0, 0, 0), line(7, 2, 2, 0), line(8, 0), line(9, 1), line(10, 0, **{"gcovr/noncode": True})]
    report = {"files": [{"file": "native/src/a.c", "lines": lines}, {"file": "native/src/b.c", "lines": [line(1, 5)]}]}
    found = read_report(report)
    assert found == {
        "native/src/a.c": covered((7, True, Counts(1, 2)), (8, False), (9, True)),
        "native/src/b.c": covered((1, True)),
    }
    a = found["native/src/a.c"]
    assert (a.lines, a.branches, a.missing, a.untaken) == (Counts(2, 3), Counts(1, 2), (8,), (7,))


def test_table() -> None:
    first = {"native/src/a.c": covered((1, True, Counts(1, 2)), (2, False), (3, False))}
    more = first | {"native/src/b.c": covered((4, True))}
    assert list(table({"suite": first, "+ ctests": more})) == [
        "| file | suite: lines | branches | + ctests: lines | branches |",
        "|---|---:|---:|---:|---:|",
        "| a.c | 1 of 3 | 1 of 2 | 1 of 3 | 1 of 2 |",
        "| b.c | – | – | 1 of 1 | – |",
        "| **all** | 1 of 3 (33.3 %) | 1 of 2 (50.0 %) | 2 of 4 (50.0 %) | 1 of 2 (50.0 %) |",
    ]


def test_list_of_what_does_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "native" / "src"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text("int a(void)\n{\n    if (!p)\n        return 1;\n    b();\n    z();\n    w();\n}\n")
    files = {
        "native/src/a.c": covered((3, True, Counts(1, 2)), (4, False), (5, True), (6, False), (7, False)),
        "native/src/whole.c": covered((1, True)),
    }
    assert list(missing(files, tmp_path)) == [
        "**a.c**: 2 of 5 lines, 1 of 2 branches",
        "",
        "- 4 `return 1;`",
        "- 6 to 7 `z();`",
        "- 1 of 2 branches of 3 `if (!p)`",
        "",
    ]
