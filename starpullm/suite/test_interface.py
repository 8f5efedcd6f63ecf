"""Limits, reports and files are as starpullm.h and the documentation say, on both sides of each limit.

What is refused is refused with the whole sentence, so that each number and name in it is compared.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from starpullm.checks.interface import checkpoints, machine, options, persistence, reports, runtimes, states, trainers
from starpullm.checks.interface.processes import Workplace
from starpullm.checks.result import CheckResult
from starpullm.pytest_plugin import Checker, Validation

pytestmark = pytest.mark.starpullm_interface

Check = Callable[..., CheckResult]


def name_of(check: Check) -> str:
    """Return a check's name as part of a test's."""
    return check.__name__


@pytest.mark.parametrize("check", [machine.machine_and_threads, runtimes.starts_of_runtimes], ids=name_of)
def test_runtimes_are_as_described(
    request: pytest.FixtureRequest, starpullm_validation: Validation, check: Callable[[Workplace], CheckResult]
) -> None:
    """The process has no runtime before; it starts many."""
    Checker(starpullm_validation, request.node, None).alone(check)


@pytest.mark.parametrize(
    "check",
    [
        options.options_of_trainers,
        trainers.calls_of_trainers,
        checkpoints.damaged_checkpoints,
        states.damaged_states,
        persistence.failing_saves,
        reports.poisoned_memory,
    ],
    ids=name_of,
)
def test_limits_are_as_described(check_on_one_worker: Checker, starpullm_validation: Validation, check: Check) -> None:
    """On 1x1, where every instrument works; the placement of tasks makes no difference."""
    check_on_one_worker(check, seed=starpullm_validation.seed)


def test_what_is_saved_is_what_was_trained(starpullm_check: Checker, starpullm_validation: Validation) -> None:
    """On every configuration, because steps run while a state is written."""
    starpullm_check(persistence.saved_and_read, seed=starpullm_validation.seed)


@pytest.mark.starpullm_over_ranks
@pytest.mark.parametrize("check", [reports.long_traces, reports.side_by_side], ids=name_of)
def test_reports_are_true(
    starpullm_check: Checker, starpullm_validation: Validation, one_record: str, check: Check
) -> None:
    """A trace of many steps, and two trainers on one runtime."""
    starpullm_check(check, record=one_record, seed=starpullm_validation.seed)
