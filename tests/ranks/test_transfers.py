"""Data that crosses more ranks than the suite's two in CI: StarPU-MPI's count is what the submitted tasks require."""

from __future__ import annotations

import pytest

from starpullm.checks.cases import Case
from starpullm.checks.check_context import run_check
from starpullm.checks.isolation import Pool
from starpullm.checks.result import Outcome

TIME_LIMIT = 100.0


@pytest.mark.parametrize(("ranks", "reduction"), [(3, "ordered"), (4, "tree")])
def test_messages_and_bytes(ranks: int, reduction: str) -> None:
    """Each rank has sent what its trace requires."""
    case = Case(reduction=reduction)._asdict()
    with Pool() as pool:
        result = pool.call(ranks, run_check, time_limit=TIME_LIMIT, check="transfers", case=case).result()
    assert result.outcome is Outcome.PASSED, "\n".join(result.lines())
    assert result.compared >= 100
