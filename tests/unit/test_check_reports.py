"""What comes back from a check's child process: its report, the worst of several ranks', and what processes cost."""

from __future__ import annotations

import json

import pytest

from starpullm.checks.result import Finding, Outcome, Result, worst_of
from starpullm.options import RuntimeConfiguration

ONE = RuntimeConfiguration("2x1", "random")


def report(outcome: Outcome, sentence: str = "3 sums") -> Result:
    findings = (Finding("first", {"expected": "1", "found": "2"}, "sum 3", "differs"), Finding("second"))
    return Result(
        check="sums",
        outcome=outcome,
        compared=3,
        sentence=sentence,
        measured=0.5,
        limit=1,
        findings=findings if outcome is Outcome.FAILED else (),
        count=3,
        where="tiny on 2x1 lws",
    )


def test_the_lines_of_a_result() -> None:
    made = report(Outcome.FAILED)
    assert made.lines() == [
        "sums of tiny on 2x1 lws: failed: 3 sums",
        "  differs  sum 3  first",
        "    expected  1",
        "    found     2",
        "  second",
        "  … and 1 more",
    ]
    assert json.loads(json.dumps(made.as_json()))["lines"] == made.lines()


@pytest.mark.parametrize(
    ("outcomes", "worst", "ranks"),
    [
        ([Outcome.PASSED, Outcome.PASSED], Outcome.PASSED, ""),
        ([Outcome.PASSED, Outcome.NOT_COMPARABLE], Outcome.NOT_COMPARABLE, "rank 1 of 2"),
        ([Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE], Outcome.INCONCLUSIVE, "rank 0 of 2"),
        ([Outcome.INCONCLUSIVE, Outcome.FAILED, Outcome.FAILED], Outcome.FAILED, "ranks 1-2 of 3"),
    ],
)
def test_the_worst_of_the_ranks_results_counts(outcomes: list[Outcome], worst: Outcome, ranks: str) -> None:
    found = worst_of([report(outcome) for outcome in outcomes])
    assert (found.outcome, found.ranks) == (worst, ranks)
    on = f" on {ranks}" if ranks else ""
    assert found.lines()[0] == f"sums of tiny on 2x1 lws{on}: {worst.value}: 3 sums"


def test_ranks_that_found_something_else_are_not_named() -> None:
    results = [report(Outcome.FAILED, "1 sum"), report(Outcome.FAILED, "2 sums")]
    assert (worst_of(results).ranks, worst_of(results).sentence) == ("rank 0 of 2", "1 sum")


def test_a_configuration_has_a_name_for_people_and_one_for_tests() -> None:
    assert (str(ONE), ONE.id) == ("2x1 random", "2x1-random")
    assert str(ONE._replace(ranks=3)) == "2x1 random 3 ranks"
    assert ONE._replace(ranks=3).id == "2x1-random-3-ranks"
