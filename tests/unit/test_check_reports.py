"""What comes back from a check's child process: its report, the worst of several ranks', and what processes cost."""

from __future__ import annotations

import json

import pytest

from starpullm.checks.isolation import CheckReport, Costs, Pool, RuntimeConfiguration, worst_report
from starpullm.checks.result import CheckResult, Outcome
from starpullm.checks.runs import parity
from starpullm.errors import InvalidArgumentError

ONE = RuntimeConfiguration("2x1", "random")


def report(outcome: Outcome, finding: str = "3 sums") -> CheckReport:
    return CheckReport.of(CheckResult(name="sums", outcome=outcome, finding=finding, compared=3, measured=0.5, limit=1))


def test_a_report_has_the_results_fields_and_lines_also_after_its_way_as_json() -> None:
    made = report(Outcome.FAILED)
    assert (made.name, made.outcome, made.finding) == ("sums", Outcome.FAILED, "3 sums")
    assert made.lines == ("sums: failed: 3 sums",)
    assert made.details["measured"] == 0.5
    assert CheckReport.from_json(json.loads(json.dumps(made.as_json()))) == made


@pytest.mark.parametrize(
    ("outcomes", "worst", "ranks", "heading"),
    [
        ([Outcome.PASSED, Outcome.PASSED], Outcome.PASSED, [0, 1], []),
        ([Outcome.PASSED, Outcome.NOT_COMPARABLE], Outcome.NOT_COMPARABLE, [1], ["on rank 1 of 2:"]),
        ([Outcome.INCONCLUSIVE, Outcome.NOT_COMPARABLE], Outcome.INCONCLUSIVE, [0], ["on rank 0 of 2:"]),
        ([Outcome.INCONCLUSIVE, Outcome.FAILED, Outcome.FAILED], Outcome.FAILED, [1, 2], ["on ranks 1-2 of 3:"]),
    ],
)
def test_the_worst_of_the_ranks_reports_counts(
    outcomes: list[Outcome], worst: Outcome, ranks: list[int], heading: list[str]
) -> None:
    found = worst_report([report(outcome).as_json() for outcome in outcomes])
    assert (found["outcome"], found["details"]["of_ranks"]) == (worst.value, ranks)
    assert found["lines"] == [*heading, f"sums: {worst.value}: 3 sums"]
    assert CheckReport.from_json(found).outcome is worst


def test_ranks_that_found_something_else_are_not_named() -> None:
    reports = [report(Outcome.FAILED, "1 sum").as_json(), report(Outcome.FAILED, "2 sums").as_json()]
    assert worst_report(reports)["lines"] == ["on rank 0 of 2:", "sums: failed: 1 sum"]


def test_a_configuration_has_a_name_for_people_and_one_for_tests() -> None:
    assert (str(ONE), ONE.id) == ("2x1 random", "2x1-random")
    assert str(ONE._replace(ranks=3)) == "2x1 random 3 ranks"
    assert ONE._replace(ranks=3).id == "2x1-random-3-ranks"


def test_costs_are_medians_of_processes_and_what_more_of_them_would_take() -> None:
    costs = Costs([1.0, 2.0, 9.0], [0.5], 10) + Costs([3.0], [0.25, 0.75], 5)
    assert (costs.starts, costs.ends, costs.served) == ([1.0, 2.0, 9.0, 3.0], [0.5, 0.25, 0.75], 15)
    assert costs.per_process == 2.5 + 0.5
    assert costs.saved == (15 - 4) * 3.0
    assert str(costs) == (
        "4 processes served 15 checks; starting and ending one takes 3.00 s, a fresh one per check would have taken "
        "33.0 s more"
    )
    assert (Costs().per_process, Costs([4.0], [], 1).saved, Costs([4.0, 4.0], [], 1).saved) == (0, 0, 0)


@pytest.mark.parametrize("time_limit", [0, -1.5])
def test_a_time_limit_is_positive(time_limit: float) -> None:
    with Pool() as pool:
        with pytest.raises(InvalidArgumentError, match=f"^time_limit: found {time_limit:g}, expected a positive"):
            pool.call(ONE, parity, time_limit=time_limit)
        assert (pool.pids(), pool.failures, pool.costs.served) == ({}, [], 0)
