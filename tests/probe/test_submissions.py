"""How tasks come to StarPU: what is submitted again, in which order, and what the probe doesn't see of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.files.probe_log import read_probe_log
from starpullm.probe.findings import Kind

from .conftest import Compile, probe


@pytest.fixture(scope="module")
def program(compiled: Compile) -> str:
    return str(compiled("submissions"))


def test_an_integer_as_the_pointer_to_arguments(program: str, tmp_path: Path) -> None:
    """It isn't followed, but recorded."""
    result = probe([program, "integers"], runs=1, keep=tmp_path / "logs")
    assert (result.outcome, result.num_tasks) == (Outcome.PASSED, 8), result.lines()
    (log,) = (tmp_path / "logs" / "reference-schedule").glob("probe-*")
    assert len(set(read_probe_log(log).tasks["arguments"][:8].tolist()) - {0}) == 8


def test_all_implementations_run(program: str) -> None:
    result = probe([program, "implementations"], runs=1)
    assert (result.outcome, result.unseen) == (Outcome.PASSED, ()), result.lines()


def test_a_lie_of_the_second_implementation(program: str) -> None:
    result = probe([program, "lies_in_second_implementation"], runs=1)
    assert (Kind.READ_WRITTEN, "double") in {(one.kind, one.codelet) for one in result.findings}, result.lines()


def test_implementations_that_differ(program: str) -> None:
    (finding,) = probe([program, "second_implementation_differs"], runs=1).findings
    assert (finding.kind, finding.codelet) == (Kind.OUTPUT_DIFFERS, "double")
    assert "equal: it ran by its codelet's implementation " in finding.sentence


def test_an_implementation_that_never_ran_is_said(program: str) -> None:
    result = probe([program, "second_implementation_never_runs"], runs=1)
    assert (result.outcome, result.unseen) == (Outcome.PASSED, ("1 implementation never ran, of double",))
    assert result.sentence.startswith("same in what was seen: "), result.lines()


@pytest.mark.parametrize(("name", "num_tasks"), [("chains", 40), ("tasks_submit", 16), ("regenerates", 40)])
def test_tasks_that_tasks_submit_are_numbered_by_these(program: str, name: str, num_tasks: int) -> None:
    """Those of different submitters come in another order in each schedule."""
    result = probe([program, name], runs=3)
    assert (result.outcome, result.num_tasks) == (Outcome.PASSED, num_tasks), result.lines()
    assert (result.different, result.notes) == (0, ())


def test_submitters_without_an_order_between_them(program: str) -> None:
    """They share handles, so that a task has other contents in each schedule."""
    (finding,) = probe([program, "submitters_share"], runs=3).findings
    assert finding.kind is Kind.OTHER_TASKS
    assert finding.sentence.endswith(
        "the tasks or their order depend on the schedule, so tasks can't be compared one by one"
    )


def test_an_undeclared_write_of_a_task_that_a_callback_submits(program: str) -> None:
    result = probe([program, "chains_lie"], runs=1)
    found = {finding.kind: finding for finding in result.findings}
    assert {finding.codelet for finding in result.findings} == {"step"}, result.lines()
    assert "step (task 1)" in found[Kind.CHANGED_BETWEEN].suspects


def test_a_task_that_goes_on_after_a_wait_is_the_same(compiled: Compile, starpu_prefix: Path) -> None:
    if "#define STARPU_OPENMP 1" not in (starpu_prefix / "include/starpu/1.4/starpu_config.h").read_text("utf-8"):
        pytest.skip("this StarPU has no OpenMP runtime")
    result = probe([str(compiled("continuation"))], runs=3)
    assert (result.outcome, result.num_tasks) == (Outcome.PASSED, 16 + 4), result.lines()
