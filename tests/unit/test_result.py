"""Tests of what all results share: a verdict on nothing is refused, and long lists are cut and counted."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

from starpullm import checks, speed
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


def classes(of: type[CheckResult]) -> Iterator[type[CheckResult]]:
    below = of.__subclasses__()
    yield from (found for direct in below for found in classes(direct))
    if not below and of.__module__.startswith("starpullm."):
        yield of


def test_every_result_says_what_it_counts() -> None:
    """A report adds up what was compared by these words; those of accesses and poison differ."""
    for package in (checks, speed):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "torch" not in module.name:  # not installed everywhere
                importlib.import_module(module.name)
    counted = {found.__name__: vars(found).get("unit", "comparisons") for found in classes(CheckResult)}
    assert [name for name, unit in counted.items() if unit == "comparisons"] == ["AccessesResult"]
