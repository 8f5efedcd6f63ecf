"""docs/checks.md has a row for each registered check, with what its class says."""

from __future__ import annotations

from pathlib import Path

from starpullm.checks.check import Check, StandaloneCheck, Where, all_checks

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"

PLACES = {
    Where.EACH: "",
    Where.ONE_WORKER: ", 1x1",
    Where.TOGETHER: ", placements together",
}


def row(check: Check) -> str:
    needs = check.needs
    ranks = {(1, 1): "", (1, None): ", also over ranks"}.get(needs.ranks, ", over ranks")
    place = ", a process of its own" if isinstance(check, StandaloneCheck) else PLACES[needs.where]
    where = f"`{check.family}`{place}{ranks}"
    return f"| {check.name} | {where} | {check.claim} | {check.cannot_see} |"


def test_the_page_has_the_rows_of_the_classes() -> None:
    """In the order of the suite."""
    table = PAGE.read_text("utf-8").partition("|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [row(check) for check in all_checks().values()]
