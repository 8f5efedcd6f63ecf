"""Programs that use StarPU in other ways than most: tasks that tags order, sparse matrices, interfaces of their own."""

from __future__ import annotations

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Fault

from .conftest import Compile, probe

TASKS, LIAR = 12, 7


def test_tasks_that_tags_order_are_compared(compiled: Compile) -> None:
    """They are without sequential consistency, so their outputs are seen in the runs of one worker: two of these.

    What is in the handle at the end is seen in all three.
    """
    result = probe([str(compiled("tags")), "right"], runs=1, workers=2)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert (result.num_tasks, result.compared, result.different) == (TASKS, 2 * TASKS + 3, 0)


def test_a_task_that_lies_is_named(compiled: Compile) -> None:
    result = probe([str(compiled("tags")), "lies"], runs=1, workers=2)
    assert [(finding.kind, finding.task) for finding in result.findings] == [(Fault.READ_WRITTEN, LIAR)]


def test_a_sparse_matrix_that_is_read_though_declared_written(compiled: Compile) -> None:
    """The program notices that its result is wrong and goes on otherwise; the probe says which task made it so."""
    result = probe([str(compiled("sparse"))], runs=1, workers=2)
    (finding,) = result.findings
    assert (finding.kind, finding.codelet, finding.handle) == (Fault.WRITTEN_READ, "add_values", 0)
    assert finding.effect is not None
    assert finding.effect.kind is Fault.POISONED_ENDING
    assert "ended with exit status 1" in finding.evidence["effect"]


def test_a_pack_method_that_aborts_leaves_its_handles_unseen(compiled: Compile) -> None:
    result = probe([str(compiled("unpackable"))], runs=1, workers=2)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert (result.compared, result.unseen) == (3 * 5, ("the contents of 5 accesses can't be read",))
