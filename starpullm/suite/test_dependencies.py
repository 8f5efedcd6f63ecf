"""Tasks access what they declare, run in the order that this requires, and reused buffers don't cost time."""

from __future__ import annotations

import pytest

from starpullm.checks import runs
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = pytest.mark.starpullm_dependencies


def test_tasks_access_what_they_declare(
    check_on_one_worker: Checker, audited_case: Case, starpullm_validation: Validation
) -> None:
    """Memory is protected except for a task's declared accesses."""
    check_on_one_worker(runs.accesses, **audited_case._asdict(), seed=starpullm_validation.seed)


def test_nothing_is_read_before_it_is_written(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """Memory that a task must write, and what a step leaves behind, holds signalling NaNs that must disappear."""
    starpullm_check(runs.poison, **case._asdict(), seed=starpullm_validation.seed)


def test_runtime_s_graph_is_the_required_order(
    check_on_one_worker: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """In StarPU's graph tasks wait for what their declared accesses require and for nothing else, on any partition."""
    check_on_one_worker(runs.runtime_graph, **case._asdict(), seed=starpullm_validation.seed)


@pytest.mark.starpullm_over_ranks
def test_run_keeps_the_required_order(starpullm_check: Checker, case: Case, starpullm_validation: Validation) -> None:
    """Each task started after the end of all tasks that its declared accesses make it wait for."""
    starpullm_check(runs.observed_order, **case._asdict(), seed=starpullm_validation.seed)


def test_reuse_adds_nothing_to_the_critical_path(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """The comparison is with the same task flow in which every step has buffers of its own."""
    starpullm_check(runs.reuse, **case._asdict(), seed=starpullm_validation.seed)
