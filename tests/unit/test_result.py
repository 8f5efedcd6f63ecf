"""Tests of what all results share: a verdict on nothing is refused, and long lists are cut and counted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from starpullm.checks.check import Check, all_checks, check
from starpullm.checks.result import MAX_LISTED, Finding, Outcome, Result, json_value
from starpullm.errors import InvalidArgumentError


def result_of(outcome: Outcome, compared: int) -> Result:
    return Result(check="sums", outcome=outcome, sentence="0 sums", compared=compared, measured=0)


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.INCONCLUSIVE])
def test_a_verdict_on_nothing_is_refused(outcome: Outcome) -> None:
    with pytest.raises(InvalidArgumentError, match="sums: nothing was compared: 0 sums"):
        result_of(outcome, 0)
    assert result_of(outcome, 1).as_json()["compared"] == 1


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NOT_COMPARABLE])
def test_a_fault_stands_and_so_does_that_nothing_is_comparable(outcome: Outcome) -> None:
    assert result_of(outcome, 0).outcome is outcome


class Sums(Check):
    """A check of the tests."""

    family, unit = "reduction", "sums"
    claim, fault, cannot_see = "sums are right", "sums are wrong", "much"


@pytest.mark.parametrize(
    ("arguments", "outcome", "sentence"),
    [
        ({}, Outcome.PASSED, "4,000 sums compared"),
        ({"note": "2 ranks"}, Outcome.PASSED, "4,000 sums compared; 2 ranks"),
        ({"findings": [Finding("a")], "count": 7}, Outcome.FAILED, "sums are wrong (7 in 4,000 sums)"),
        ({"measured": 0.5, "limit": 1}, Outcome.PASSED, "4,000 sums compared"),
        (
            {"measured": 2.5, "limit": 1},
            Outcome.FAILED,
            "sums are wrong (0 in 4,000 sums): found 2.5, expected at most 1",
        ),
        (
            {"measured": math.nan, "limit": 1, "undecided": "noise"},
            Outcome.FAILED,
            "sums are wrong (0 in 4,000 sums): found nan, expected at most 1",
        ),
        ({"undecided": "noise"}, Outcome.INCONCLUSIVE, "noise"),
        ({"undecided": "noise", "findings": [Finding("a")]}, Outcome.FAILED, "sums are wrong (1 in 4,000 sums)"),
        ({"undecided": "noise", "compared": 0}, Outcome.NOT_COMPARABLE, "noise"),
    ],
)
def test_the_verdict_follows_from_what_was_found(arguments: dict[str, Any], outcome: Outcome, sentence: str) -> None:
    """Not finite is beyond every limit, and a fault stands also without a verdict on the rest."""
    result = Sums().result(**{"compared": 4000, **arguments})
    assert (result.check, result.outcome, result.sentence) == ("sums", outcome, sentence)


def test_arrays_and_mappings_are_json() -> None:
    assert json_value({1: np.array([1.5, np.inf]), "n": {"m": np.int64(2)}}) == {"1": [1.5, "inf"], "n": {"m": 2}}


def test_long_lists_are_cut_and_counted() -> None:
    result = Sums().result(compared=50, findings=[Finding(str(number)) for number in range(50)])
    assert (len(result.findings), result.count, result.lines()[-1]) == (MAX_LISTED, 50, "  … and 30 more")


def test_a_check_that_does_not_say_what_it_is_is_refused() -> None:
    class Mute(Sums):
        claim = ""

    with pytest.raises(InvalidArgumentError, match="Mute: found no claim"):
        check(Mute)
    assert "parity" in all_checks()
    with pytest.raises(InvalidArgumentError, match="parity: found two checks of this name, expected one"):
        check(type("Parity", (Sums,), {}))
