"""What the library says of the machine, of its threads and of a run is true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from starpullm.checks import sessions, threads
from starpullm.checks.result import CheckResult
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_interface


def test_machine_and_threads_are_as_described(request: pytest.FixtureRequest, starpullm_validation: Validation) -> None:
    """The process has no runtime before; it starts many."""
    Checker(starpullm_validation, request.node, None).alone(threads.machine_and_threads)


@pytest.mark.starpullm_over_ranks
@pytest.mark.parametrize("check", [sessions.long_traces, sessions.side_by_side], ids=lambda check: check.__name__)
def test_reports_are_true(
    starpullm_check: Checker, starpullm_validation: Validation, one_record: str, check: Callable[..., CheckResult]
) -> None:
    """A trace of many steps, and two trainers on one runtime."""
    starpullm_check(check, record=one_record, seed=starpullm_validation.seed)
