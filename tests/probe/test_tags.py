"""A program that orders its tasks by tags, so that every access is without sequential consistency."""

from __future__ import annotations

from starpullm.checks.result import Outcome
from starpullm.probe import probe_program
from starpullm.probe.findings import Kind

from .conftest import Compile

TASKS, LIAR = 12, 7


def test_tasks_that_tags_order_are_compared(compiled: Compile) -> None:
    """Where one task runs at a time, their outputs are: in three of the four runs."""
    result = probe_program([str(compiled("tags")), "right"], runs=1, workers=2, time_limit=60)
    assert result.outcome is Outcome.PASSED, result.describe()
    assert (result.num_tasks, result.compared, result.different) == (TASKS, 2 * TASKS, 0)


def test_a_task_that_lies_is_named(compiled: Compile) -> None:
    result = probe_program([str(compiled("tags")), "lies"], runs=1, workers=2, time_limit=60)
    assert [(finding.kind, finding.task) for finding in result.findings] == [(Kind.READ_WRITTEN, LIAR)]
