"""What the run of generated mutants takes for a mutant, how it credits a catch, and the summary; nothing is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .generated import package
from .generated.candidates import Candidate, Stratum, candidates_of, ends_a_loop, shuffled, strata
from .generated.results import Mutant, Results, confidence_interval
from .generated.stages import OF_PACKAGE, STAGES, SUITE, Outcome
from .patches import CHECKOUT

RUN = {"seed": "1", "sources": "hash"}

SOURCE = """\
/* A sum a + b. */
#include <stdio.h>

static int plus(int a, int b)
{
    return a + b; /* a + b */
}

static void prefetch_next(int a)
{
    plus(a, a + 1);
}

static int told(int a)
{
    return fail("a + b");
}
"""


MODULE = '''\
"""A module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["plus"]

Ids = tuple[int, int]
WIDTH = -1  # and not + 1


def plus(a: int, b: Ids | None = None) -> int | None:
    """A sum a + b.

    And more.
    """
    glob = "/*"
    for c in (1, 2):
        a += c  # a + b
    return a
'''

needs_tool = pytest.mark.skipif(importlib.util.find_spec("universalmutator") is None, reason="needs universalmutator")


@needs_tool
def test_candidates_change_code_that_no_rule_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "native" / "src" / "graph"
    folder.mkdir(parents=True)
    (folder / "a.c").write_text(SOURCE)
    found = list(candidates_of(tmp_path, "graph"))
    assert {candidate.line for candidate in found} == {4, 5, 6, 7, 14, 15, 16, 17}
    assert not any('fail("' in candidate.after and '"a + b"' not in candidate.after for candidate in found)
    minus = next(candidate for candidate in found if candidate.after == "    return a - b;")
    minus.apply(tmp_path)
    assert (folder / "a.c").read_text() == SOURCE.replace("    return a + b; /* a + b */", "    return a - b;")
    with pytest.raises(ValueError, match="expected"):
        minus.apply(tmp_path)


@needs_tool
def test_candidates_of_the_package_are_code_that_runs(tmp_path: Path) -> None:
    """What follows a string with the start of C's comments is not left out."""
    path = tmp_path / "starpullm" / "traces" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text(MODULE)
    found = list(package.candidates_of(tmp_path, "traces"))
    assert {candidate.line for candidate in found} == {14, 17, 22, 23, 24, 25}
    assert "    return None" in {candidate.after for candidate in found if candidate.line == 25}
    changed = {after(candidate) for candidate in found}
    codes = {package.code_of(text) for text in changed}
    assert None in codes  # `def plus)a: ...`
    assert package.code_of(MODULE) in codes  # `continue` at the end of the loop
    assert len(codes) > 10


def after(candidate: Candidate) -> str:
    return "\n".join(candidate.applied(MODULE.splitlines())) + "\n"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("-> int | None", "-> int & None"),
        ("a: int", "a: str"),
        ('"/*"', '"/+"'),
        ("a + b.", "a - b."),
        ("    return a\n", "    return a\n    a = 1\n"),
        ("a += c", "a += c\n        continue"),
    ],
)
def test_what_compiles_to_the_same_code_is_no_mutant(before: str, now: str) -> None:
    assert MODULE.count(before) == 1
    assert package.code_of(MODULE.replace(before, now)) == package.code_of(MODULE)
    assert package.code_of(MODULE.replace("a += c", "a -= c")) != package.code_of(MODULE)


def test_the_end_of_a_loop_is_found() -> None:
    lines = ["for (;;) {", "    if (a) {", "        b();", "    }", "    c();", "}", "if (a) {", "    d();", "}"]
    assert [number for number in range(1, 10) if ends_a_loop(lines, number)] == [5]


def candidates(count: int) -> list[Candidate]:
    return [Candidate("native/src/graph/step.c", 1 + number // 4, "a", str(number), "r") for number in range(count)]


def test_the_order_depends_on_seed_and_stratum_and_takes_every_line_once_first() -> None:
    plain = candidates(40)
    orders = [shuffled(plain, seed, Stratum(folder)) for seed, folder in ((1, "graph"), (2, "graph"), (1, "io"))]
    assert shuffled(plain, 1, Stratum("graph")) == orders[0]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    for order in orders:
        assert sorted(order, key=lambda candidate: int(candidate.after)) == plain
        assert {candidate.line for candidate in order[:10]} == set(range(1, 11))


def mutant(number: int, *outcomes: Outcome) -> Mutant:
    candidate = Candidate("native/src/graph/step.c", number, "    a < b;", "    a <= b;", "< ==> <=")
    return Mutant("graph", number, candidate, f"hash{number}", list(outcomes))


def test_results_are_continued_and_not_mixed(tmp_path: Path) -> None:
    """The suite alone is credited, and survivors are listed."""
    path = tmp_path / "results.jsonl"
    before = Results(path, RUN)
    passed = [Outcome(stage.name, "", "", 9.0) for stage in SUITE]
    before.add(mutant(1, Outcome("quick", "test_a[x]", "SIGSEGV", 2.0)))
    before.add(mutant(2, *passed, Outcome(STAGES[-1].name, "test_saved", "differs", 9.0)))
    before.add(mutant(3, *passed, Outcome(STAGES[-1].name, "", "", 9.0)))
    after = Results(path, RUN)
    assert after.mutants == before.mutants
    assert [one.is_caught for one in after.mutants] == [True, False, False]
    with pytest.raises(ValueError, match="a run with other seed"):
        Results(path, {**RUN, "seed": "2"})
    with pytest.raises(ValueError, match="a run with other stages"):
        Results(path, {**RUN, "stages": "scenarios"})
    text = after.summary()
    assert "| graph | 3 | 1 | 1 | 33.3% (0.8% to 90.6%) | 66.7% (9.4% to 99.2%) | 41.5 |" in text
    assert "| **all** | 3 | 1 | 1 |" in text
    assert "graph (`< ==> <=`): caught by the project's test `test_saved`." in text
    assert text.count("+    a <= b;") == 2
    assert text.index(": not caught.") < text.index(": caught by the project's test")


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    assert confidence_interval(10, 10) == pytest.approx((0.025 ** (1 / 10), 1))
    assert confidence_interval(0, 10) == pytest.approx((0, 1 - 0.025 ** (1 / 10)))


def test_every_folder_of_the_sources_is_sampled_or_left_out_on_purpose() -> None:
    sampled = {Path(stratum.folder).parts[0] for stratum in strata(["avx2"])}
    folders = {path.parent.name for path in (CHECKOUT / "native" / "src").glob("*/*.c")}
    assert folders - sampled == {"devices", "instrument", "model"}
    parts = {part for folder in package.FOLDERS.values() for part in folder}
    modules = (CHECKOUT / "starpullm").rglob("*.py")
    assert {str(path.parent.relative_to(CHECKOUT / "starpullm")) for path in modules} == {part or "." for part in parts}
    assert package.FOLDERS.keys() == OF_PACKAGE.keys()


def test_own_tests_of_every_folder_of_the_package_exist() -> None:
    files = {name for names in OF_PACKAGE.values() for name in names}
    assert [name for name in files if not (CHECKOUT / "tests" / "native" / name).exists()] == []
