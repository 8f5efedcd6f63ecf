"""What is read in a report of gcovr, and the page that is made of it; nothing is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .explained import COPIES, NEXT, TRY, Block, Class, Explanations
from .page import Missing, table, write_page
from .report import Counts, Covered, Line, read_report

NO_MEMORY = Class("no memory", "malloc fails.", "`test_allocation`")


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


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Provide a folder with one source of nine lines."""
    folder = tmp_path / "native" / "src"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text(
        "status a(void)\n{\n    if (!p)\n        return fail(OUT_OF_MEMORY);\n    TRY(b());\n    if (x || y)\n"
        "        z();\n    w();\n}\n"
    )
    return tmp_path


def test_list_of_what_does_not_run(checkout: Path) -> None:
    explanations = Explanations()
    explanations.classes.append(NO_MEMORY)
    explanations.add(Block("native/src/a.c", range(4, 5), NO_MEMORY))
    suite = {
        "native/src/a.c": covered(
            *((3, True, Counts(1, 2)), (4, False), (5, True, Counts(1, 2)), (6, True, Counts(2, 4)), (7, False)),
            *((8, False),),
        )
    }
    more = {"native/src/a.c": covered((4, True), (7, False), (8, False))}
    missing = Missing(suite, more, explanations, checkout)
    assert list(missing.entries()) == [
        "**a.c**: 3 of 6 lines, 4 of 8 branches",
        "",
        "- 4 `return fail(OUT_OF_MEMORY);`: no memory; a ctest",
        "- 7 to 8 `z();`: **not explained**",
        "- 2 of 4 branches of 6 `if (x || y)`: **not explained**",
        "- other branches: 1 the way to the next line, 1 the return after a failure",
        "",
    ]
    assert missing.open() == 4
    assert list(missing.classes())[2:] == [
        "| no memory | 1 | 0 | malloc fails. | `test_allocation` |",
        f"| {TRY.name} | 0 | 1 | {TRY.why} |  |",
        f"| {NEXT.name} | 0 | 1 | {NEXT.why} |  |",
        f"| {COPIES.name} | 0 | 0 | {COPIES.why} |  |",
        "| **not explained** | 2 | 2 |  |  |",
    ]
    assert explanations.unused(suite) == []
    assert explanations.unused({"native/src/a.c": covered((4, True))}) == ["native/src/a.c:4"]


def test_the_page_keeps_what_is_around_what_was_measured() -> None:
    page = "before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n"
    new = write_page(page, ["head", "", "| a |"])
    assert new == "before\n<!-- measured: begin -->\nhead\n\n| a |\n<!-- measured: end -->\nafter\n"
    assert write_page(new, ["head", "", "| a |"]) == new
    with pytest.raises(SystemExit):
        write_page("no marks", [])
