"""The list of mends, and the table: nothing is built."""

import re
from pathlib import Path

from evaluation.mutation.generated.candidates import Candidate

from .bugs import Bug, mends
from .stages import STAGES, Results, Tried


def test_mends_are_commits_with_what_is_wrong() -> None:
    found = list(mends())
    assert len({bug.name for bug in found}) == len(found) >= 40
    assert all(re.fullmatch(r"[0-9a-f]{9}", bug.name) and bug.wrong for bug in found)


def test_a_block_that_is_not_run_has_no_mutant_that_is() -> None:
    lines = [("a.c", 1, True), ("a.c", 3, False), ("b.c", 1, True)]

    def is_run(file: str, line: int, before: str) -> bool:
        return Bug("mutants, core", "", "", Candidate(file, line, before, "", "")).is_run(lines)

    assert is_run("a.c", 1, "if (a)")
    assert is_run("a.c", 2, "&& b)")
    assert not is_run("a.c", 2, "\t{")
    assert not is_run("a.c", 3, "c();")
    assert not is_run("a.c", 4, "{")
    assert is_run("b.c", 1, "d();")


def test_the_table_counts_each_bug_once(tmp_path: Path) -> None:
    """What changes no code, and the runs of the unchanged StarPU, are no bugs."""
    results = Results(tmp_path / "results.jsonl")
    for kind, name, stage, finding in (
        ("unchanged", "", 0, ""),
        ("mends, mpi", "a", 0, ""),
        ("mends, mpi", "a", 1, "growth"),
        ("mends, mpi", "b", 0, ""),
        ("left out", "c", 1, ""),
    ):
        results.add(Tried(kind, name, "a leak", list(STAGES)[stage], finding, 60.0))
    table = list(Results(tmp_path / "results.jsonl").table())
    assert table[2:] == [
        "| mends, mpi | 2 | 1, 50% (1% to 99%) | 0 | 1 | 0 | 0 |",
        "| **all mends** | 2 | 1, 50% (1% to 99%) | 0 | 1 | 0 | 0 |",
        "",
        "- left out: 1: suite, quick",
        "- not caught (mends, mpi): b: a leak",
    ]
