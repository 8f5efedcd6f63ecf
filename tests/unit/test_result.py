"""Tests of what all results share: a verdict on nothing is refused, and long lists are cut and counted."""

from __future__ import annotations

import pytest

from starpullm.checks.result import CheckResult, Outcome, listed
from starpullm.errors import InvalidArgumentError


def result_of(outcome: Outcome, compared: int) -> CheckResult:
    return CheckResult(name="sums", outcome=outcome, finding="0 sums", compared=compared, measured=0)


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.INCONCLUSIVE])
def test_a_verdict_on_nothing_is_refused(outcome: Outcome) -> None:
    with pytest.raises(InvalidArgumentError, match="sums: nothing was compared: 0 sums"):
        result_of(outcome, 0)
    assert result_of(outcome, 1).as_json()["compared"] == 1


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NOT_COMPARABLE])
def test_a_fault_stands_and_so_does_that_nothing_is_comparable(outcome: Outcome) -> None:
    assert result_of(outcome, 0).outcome is outcome


def test_long_lists_are_cut_and_counted() -> None:
    assert list(listed(["a", "b"], 2, "wrong: ")) == ["wrong: a", "wrong: b"]
    assert list(listed(["a", "b"], 5)) == ["a", "b", "… and 3 more"]
