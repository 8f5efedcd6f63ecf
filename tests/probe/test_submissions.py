"""How tasks come to StarPU: what is submitted again, in which order, and what the probe doesn't see of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.files.probe_log import read_probe_log
from starpullm.probe import probe_program
from starpullm.probe.findings import Fault

from .conftest import Compile, probe


@pytest.fixture(scope="module")
def program(compiled: Compile) -> str:
    return str(compiled("submissions"))


def has_feature(starpu_prefix: Path, name: str) -> bool:
    (header,) = starpu_prefix.glob("include/starpu/*/starpu_config.h")
    return f"#define STARPU_{name} 1" in header.read_text("utf-8")


def refusal(*command: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        probe(command, runs=1)
    return str(caught.value)


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
    assert (Fault.READ_WRITTEN, "double") in {(one.kind, one.codelet) for one in result.findings}, result.lines()


def test_implementations_that_differ(program: str) -> None:
    (finding,) = probe([program, "second_implementation_differs"], runs=1).findings
    assert (finding.kind, finding.codelet) == (Fault.OUTPUT_DIFFERS, "double")
    assert finding.sentence.startswith("gives other results by its implementation ")


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
    result = probe([program, "submitters_share"], runs=3)
    assert [finding.kind for finding in result.findings] == [Fault.OTHER_TASKS], result.lines()
    assert result.findings[0].sentence == "the tasks or their order depend on the schedule"


def test_threads_that_submit_at_once(program: str) -> None:
    """StarPU may have their tasks in another order than that in which it told the probe."""
    result = probe([program, "threads_share"], runs=3)
    assert (result.num_tasks, len(result.seconds) > 1) == (120, True)
    assert {finding.kind for finding in result.findings} <= {Fault.OTHER_TASKS}, result.lines()


def test_an_undeclared_write_of_a_task_that_a_callback_submits(program: str) -> None:
    result = probe([program, "chains_lie"], runs=1)
    found = {finding.kind: finding for finding in result.findings}
    assert {finding.codelet for finding in result.findings} == {"step"}, result.lines()
    assert "step (task 1)" in found[Fault.CHANGED_BETWEEN].suspects


def test_a_task_that_goes_on_after_a_wait_is_the_same(compiled: Compile, starpu_prefix: Path, tmp_path: Path) -> None:
    """It has the name of the program's function, not of the one by which StarPU's OpenMP runtime calls that."""
    if not has_feature(starpu_prefix, "OPENMP"):
        pytest.skip("this StarPU has no OpenMP runtime")
    for arguments, more in ([], 0), (["waits"], 2):
        logs = tmp_path / f"logs{more}"
        result = probe([str(compiled("continuation")), *arguments], runs=3, keep=logs)
        assert (result.outcome, result.num_tasks) == (Outcome.PASSED, 16 + 4 + more), result.lines()
        (log,) = (logs / "reference-schedule").glob("probe-*")
        assert any(name.startswith("continuation+0x") for name in read_probe_log(log).names)
        assert not any(name.startswith("libstarpu") for name in read_probe_log(log).names)


def test_tasks_of_another_context_are_counted(program: str) -> None:
    result = probe([program, "in_another_context"], runs=1)
    assert (result.outcome, result.num_tasks) == (Outcome.PASSED, 4), result.lines()
    assert result.unseen == ("4 tasks in scheduling contexts with another policy, or none, as parallel workers",)
    assert result.sentence.startswith("same in what was seen: ")


def test_what_tasks_of_another_context_print_is_not_compared(program: str) -> None:
    """The probe doesn't choose their workers."""
    result = probe([program, "prints_in_another_context"], runs=1)
    assert (result.outcome, result.findings) == (Outcome.PASSED, ()), result.lines()
    assert "standard output isn't compared: tasks that weren't seen may have a part in it" in result.surroundings


def test_what_tasks_of_another_context_have_done_is_nobodys_fault(program: str) -> None:
    result = probe([program, "shared_with_another_context"], runs=1)
    assert (result.outcome, result.findings) == (Outcome.PASSED, ()), result.lines()
    assert result.unseen == ("16 tasks in scheduling contexts with another policy, or none, as parallel workers",)


def test_parallel_workers_are_named(program: str, starpu_prefix: Path) -> None:
    if not has_feature(starpu_prefix, "PARALLEL_WORKER"):
        pytest.skip("this StarPU has no parallel workers")
    assert "tasks in scheduling contexts with another policy, or none, as parallel workers, expected" in refusal(
        program, "parallel_workers"
    )


@pytest.mark.parametrize("name", ["no_data", "only_reads", "void_and_parts"])
def test_tasks_that_leave_nothing_are_judged_by_the_ending_and_the_output(program: str, name: str) -> None:
    result = probe([program, name], runs=1)
    assert (result.outcome, result.unit) == (Outcome.PASSED, "endings"), result.lines()
    assert result.lines()[1].endswith(" other runs, nothing was compared")
    words = "any contents, as no task leaves any: only how the program ends and what it prints were compared"
    assert words in result.unseen


def test_what_tasks_that_only_read_print_is_compared(program: str) -> None:
    """The last of them prints what the others have counted, without a handle."""
    (finding,) = probe([program, "only_reads_and_counts"], runs=3).findings
    assert (finding.kind, finding.evidence["here"] != "") == (Fault.OTHER_OUTPUT, True)


def test_a_refusal_says_what_the_tasks_do_with_their_data(program: str) -> None:
    words = "of 4 accesses 4 add to reductions of which no task reads the result, and 0 write what"
    assert words in refusal(program, "only_adds")


def test_a_sum_that_only_the_application_reads(program: str) -> None:
    """What differs between the orders of these integers is bounded if their type is told."""
    result = probe([program, "sum_is_acquired"], runs=3)
    assert (result.outcome, result.compared > 0, result.unseen) == (Outcome.PASSED, True, ()), result.lines()
    exact = partial(probe_program, runs=3, tolerance="0ulp", tolerance_type="integer")
    assert exact([program, "sum_is_acquired"]).outcome is Outcome.PASSED
    turns = probe([program, "sum_of_turns_is_acquired"], runs=3)
    assert turns.sentence.startswith("same in what was seen: ")
    (free,) = turns.unseen
    assert " of handle 0, whose order is free (REDUX, " in free
    (finding,) = exact([program, "sum_of_turns_is_acquired"]).findings
    assert finding.kind is Fault.BEYOND_TOLERANCE
    assert {suspect.partition(" ")[0] for suspect in finding.suspects} == {"add_in_turn"}


def test_a_task_that_is_tried_again_is_one_task(program: str) -> None:
    result = probe([program, "retries"], runs=3)
    assert (result.outcome, result.num_tasks, result.unseen) == (Outcome.PASSED, 3, ()), result.lines()
    assert (result.compared % 3, result.compared > 3, result.different) == (0, True, 0)
