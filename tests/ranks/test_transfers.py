"""Data that crosses more ranks than the suite's two in CI: StarPU-MPI's count is what the submitted tasks require."""

from __future__ import annotations

import pytest

from starpullm.checks.cases import Case
from starpullm.checks.check_context import serve_checks
from starpullm.checks.result import Outcome
from starpullm.checks.suite_items import Item
from starpullm.checks.transfers import Transfers
from starpullm.processes.children import Pool

TIME_LIMIT = 100.0


@pytest.mark.parametrize(("ranks", "reduction"), [(3, "ordered"), (4, "tree")])
def test_messages_and_bytes(ranks: int, reduction: str) -> None:
    """Each rank has sent what its trace requires."""
    item = Item(Transfers(), Case(reduction=reduction), None, ranks)
    with Pool(serve_checks) as pool:
        result = item.run(lambda *asked, **options: pool.ask(*asked, time_limit=TIME_LIMIT, **options).result())
    assert result.outcome is Outcome.PASSED, "\n".join(result.lines())
    assert result.compared >= 100
