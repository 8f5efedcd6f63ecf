"""Data that crosses more ranks than the suite's two in CI: StarPU-MPI's count is what the submitted tasks require."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from starpullm.checks.isolation import Pool
from starpullm.checks.place import Workplace
from starpullm.checks.result import CheckResult, Outcome
from starpullm.checks.transfers import transfers_of_ordered, transfers_of_tree

TIME_LIMIT = 100.0


@pytest.mark.parametrize(("ranks", "check"), [(3, transfers_of_ordered), (4, transfers_of_tree)])
def test_messages_and_bytes(ranks: int, check: Callable[[Workplace], CheckResult]) -> None:
    """Each rank has sent what its trace requires."""
    with Pool() as pool:
        report = pool.call_alone(check, ranks=ranks, time_limit=TIME_LIMIT).result()
    assert report.outcome is Outcome.PASSED, "\n".join(report.lines)
    assert report.details["compared"] >= 100
