"""What the probe concludes from two logs, and from one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starpullm.errors import FormatError
from starpullm.files import probe_log
from starpullm.probe.compare import compare, compare_ranks
from starpullm.probe.elements import parse_tolerance
from starpullm.probe.findings import Fault, ProgramFinding, first_of_each
from starpullm.probe.order import broken_order
from starpullm.probe.places import with_places
from starpullm.probe.probe_result import verdict
from starpullm.probe.probe_schedules import REPEATED
from starpullm.probe.single_run_checks import changed_between, never_changed, not_waited_for, written_though_read
from starpullm.probe.tolerance import beyond_tolerance
from starpullm.probe.undeclared import undeclared_accesses

from .probe_logs import COMMUTE, REDUX, RW, R, Task, W, flow

FILL = Task("fill", {0: W}, (1, 10, 20), after={0: 5})
ADD = Task("add", {0: RW}, (2, 30, 40), before={0: 5}, after={0: 6})
READ = Task("read", {0: R, 1: W}, (3, 50, 60), before={0: 6}, after={0: 6, 1: 9})


def finding(kind: Fault, schedule: str = "seed 1", **members: Any) -> ProgramFinding:
    return ProgramFinding(**{"sentence": "", **members}, kind=kind, schedule=schedule)


def test_equal_runs(tmp_path: Path) -> None:
    one, two = (flow(tmp_path / name, FILL, ADD, READ) for name in "ab")
    result = compare(one, two, "seed 1")
    assert (result.outputs, result.handles, result.different, result.findings) == (3, 2, 0, ())


def test_a_task_that_leaves_something_else_is_named_and_those_after_it_are_not(tmp_path: Path) -> None:
    one = flow(tmp_path / "a", FILL, ADD, READ)
    add = replace(ADD, after={0: 7})
    two = flow(tmp_path / "b", FILL, add, replace(READ, before={0: 7}, after={0: 7, 1: 10}))
    result = compare(one, two, "seed 1")
    assert [(finding.kind, finding.task, finding.handle) for finding in result.findings] == [
        (Fault.OUTPUT_DIFFERS, 1, 0)
    ]
    assert (result.different, result.tolerated) == (2, 0)


def test_an_input_that_nobody_declares_to_have_changed(tmp_path: Path) -> None:
    one = flow(tmp_path / "a", FILL, READ)
    two = flow(tmp_path / "b", FILL, replace(READ, before={0: 8}, after={0: 8, 1: 10}))
    (finding,) = compare(one, two, "seed 1").findings
    assert (finding.kind, finding.task) == (Fault.INPUT_CHANGED, 1)


def test_the_application_may_change_what_no_task_waits_for(tmp_path: Path) -> None:
    """The reader was submitted after the end of the writer, so there was time for an acquisition."""
    one = flow(tmp_path / "a", FILL, READ)
    two = flow(tmp_path / "b", FILL, replace(READ, times=(21, 50, 60), before={0: 8}))
    (finding,) = compare(one, two, "seed 1").findings
    assert finding.kind is Fault.INPUT_FROM_OUTSIDE


def test_other_tasks_are_not_compared(tmp_path: Path) -> None:
    one = flow(tmp_path / "a", FILL, ADD)
    for name, tasks in (("b", (FILL, READ)), ("c", (FILL,)), ("d", (FILL, replace(ADD, modes={0: R})))):
        result = compare(one, flow(tmp_path / name, *tasks), "seed 1")
        assert [finding.kind for finding in result.findings] == [Fault.OTHER_TASKS]
        assert result.outputs == 0
    (again,) = compare(one, flow(tmp_path / "again", FILL), REPEATED.name).findings
    assert again.sentence == "the tasks or their order change from run to run in one schedule"
    assert again.evidence["reference schedule"] == "add (task 1) has 1 access, of handle 0"


def test_starpus_own_tasks_come_at_any_time(tmp_path: Path) -> None:
    """Sums are combined by tasks of StarPU's and StarPU-MPI's own, which other threads and callbacks submit."""
    add = Task("add", {0: REDUX}, (1, 10, 20))
    join = Task("join", {0: RW | COMMUTE, 1: R}, (1, 10, 20), flags=probe_log.INTERNAL, submitter=1)
    assert not flow(tmp_path / "plain", add, add, join).is_nested
    added = replace(add, submitter=1)
    one = flow(tmp_path / "a", add, added, join, added)
    assert one.is_nested
    assert compare(one, flow(tmp_path / "b", add, added, added, join), "seed 1").findings == ()


def test_what_comes_from_a_free_order_is_tolerated(tmp_path: Path) -> None:
    add = Task("add", {0: RW | COMMUTE}, (2, 30, 40), before={0: 5})
    one = flow(tmp_path / "a", FILL, add, replace(READ, before={0: 6}))
    two = flow(tmp_path / "b", FILL, add, replace(READ, before={0: 7}, after={0: 7, 1: 10}))
    result = compare(one, two, "seed 1")
    assert (result.findings, result.different, result.tolerated) == ((), 1, 1)


@pytest.mark.parametrize("times", [(4, 60, 70), (4, 25, 28)], ids=["the same", "another"])
def test_poison_is_blamed_only_if_tasks_that_commute_ran_in_the_same_order(
    tmp_path: Path, times: tuple[int, int, int]
) -> None:
    add = Task("add", {0: RW | COMMUTE}, (2, 30, 40), before={0: 5}, after={0: 6})
    last = Task("add", {0: RW | COMMUTE}, (3, 50, 55), before={0: 6}, after={0: 7})
    one = flow(tmp_path / "a", FILL, add, last)
    two = flow(tmp_path / "b", FILL, replace(add, before={0: 8}), replace(last, times=times))
    (result,) = compare_ranks({0: one}, {0: two}, "with poison", is_same_order=True).values()
    assert [finding.task for finding in result.findings] == ([1] if times[1] > 40 else [])


def test_a_fault_is_not_hidden_by_a_free_order(tmp_path: Path) -> None:
    redux = Task("sum", {2: REDUX}, (1, 5, 6))
    one = flow(tmp_path / "a", redux, FILL, ADD)
    two = flow(tmp_path / "b", redux, FILL, replace(ADD, after={0: 7}))
    result = compare(one, two, "seed 1")
    assert [(finding.kind, finding.codelet) for finding in result.findings] == [(Fault.OUTPUT_DIFFERS, "add")]
    assert result.tolerated == 0


def test_a_read_that_writes(tmp_path: Path) -> None:
    wrong = flow(tmp_path / "a", FILL, replace(READ, before={0: 5}, after={0: 6, 1: 9}))
    (finding,) = written_though_read("reference schedule", wrong)
    assert (finding.kind, finding.task, finding.handle) == (Fault.READ_WRITTEN, 1, 0)
    right = flow(tmp_path / "b", FILL, replace(READ, before={0: 5}, after={0: 5, 1: 9}))
    assert list(written_though_read("reference schedule", right)) == []


def test_what_a_device_shows_alone(tmp_path: Path) -> None:
    """Beside other tasks, a device's copy is changed by its own task only, and so is what it hasn't waited for."""
    there = replace(READ, before={0: 5}, after={0: 6, 1: 9}, implementation=probe_log.ON_DEVICE)
    on_device = flow(tmp_path / "a", FILL, there)
    (finding,) = written_though_read("seed 1", on_device, is_serial=False)
    assert (finding.kind, finding.where) == (Fault.READ_WRITTEN, "read (task 1, on a device)")
    assert list(written_though_read("seed 1", flow(tmp_path / "b", FILL, READ), is_serial=False)) == []
    early = flow(tmp_path / "c", FILL, replace(there, returned={0: 6, 1: 8}))
    (finding,) = not_waited_for("seed 1", early)
    assert (finding.kind, finding.task, finding.handle) == (Fault.NOT_WAITED, 1, 1)
    assert list(not_waited_for("seed 1", on_device)) == []


def test_a_device_that_computes_something_else(tmp_path: Path) -> None:
    one = flow(tmp_path / "a", FILL, ADD, READ)
    add = replace(ADD, after={0: 7}, implementation=probe_log.ON_DEVICE)
    two = flow(tmp_path / "b", FILL, add, replace(READ, before={0: 7}, after={0: 7, 1: 10}))
    (finding,) = compare(one, two, "seed 1").findings
    assert finding.sentence == "gives other results by its implementation 0 for devices than by 0 for CPUs"
    (bounded,) = compare_ranks({0: one}, {0: two}, "seed 1", bounds_devices=True).values()
    assert (bounded.findings, bounded.tolerated, bounded.allowed_after) == ((), 2, (1, 3))


def test_a_change_between_two_tasks(tmp_path: Path) -> None:
    other = Task("other", {1: W}, (2, 22, 28), after={1: 1})
    changed = Task("read", {0: R}, (3, 50, 60), before={0: 6})
    (finding,) = changed_between("reference schedule", flow(tmp_path / "a", FILL, other, changed))
    assert (finding.kind, finding.task, finding.suspects) == (Fault.CHANGED_BETWEEN, 2, ("other (task 1)",))
    late = replace(changed, times=(21, 50, 60))
    assert list(changed_between("reference schedule", flow(tmp_path / "b", FILL, other, late))) == []
    acquired = Task("", {}, (2, 0, 0), flags=probe_log.ACQUIRE | probe_log.NO_CODELET)
    assert list(changed_between("reference schedule", flow(tmp_path / "c", FILL, acquired, changed))) == []


def test_threads_that_submit_at_once(tmp_path: Path) -> None:
    """The log has the second task first, if its thread was stopped before StarPU had it."""
    early = Task("add", {0: RW}, (2, 50, 60), before={0: 7}, after={0: 8}, thread=2)
    late = Task("add", {0: RW}, (3, 30, 40), before={0: 5}, after={0: 7})
    run = flow(tmp_path / "a", FILL, early, late)
    assert list(changed_between("seed 1", run)) == list(broken_order("seed 1", run)) == []
    assert run.source.tolist() == [-1, 2, 0]
    in_order = flow(tmp_path / "b", FILL, replace(early, times=(2, 21, 29)), replace(late, before={0: 8}))
    (finding,) = compare(in_order, run, "seed 1").findings
    assert finding.kind is Fault.OTHER_TASKS
    # Its thread has gone on to submit another task, so StarPU had the first.
    fill = replace(FILL, thread=2)
    known = flow(tmp_path / "c", fill, early, Task("read", {1: R}, (2, 70, 80), thread=2), late)
    assert [finding.task for finding in changed_between("seed 1", known)] == [1, 3]
    assert [finding.task for finding in broken_order("seed 1", known)] == [3]


def test_updates_that_change_nothing(tmp_path: Path) -> None:
    still = replace(ADD, after={0: 5})
    (note,) = never_changed([flow(tmp_path / "a", FILL, still)])
    assert (note.kind, note.codelet) == (Fault.NEVER_CHANGED, "add")
    flows = [flow(tmp_path / "b", FILL, still, replace(ADD, times=(4, 50, 60))), flow(tmp_path / "c", FILL, still)]
    assert list(never_changed(flows)) == []


def test_the_order_of_a_run(tmp_path: Path) -> None:
    early = replace(ADD, times=(2, 15, 40))
    (finding,) = broken_order("seed 1", flow(tmp_path / "a", FILL, early))
    assert finding.lines() == [
        "order  add (task 1)  starts before the end of fill (task 0), for which it has to wait",
        "  evidence  5 ns before, although both use handle 0",
    ]
    commuting = [replace(task, modes={0: RW | COMMUTE}) for task in (FILL, early)]
    assert list(broken_order("seed 1", flow(tmp_path / "b", *commuting))) == []
    assert list(broken_order("seed 1", flow(tmp_path / "c", FILL, ADD))) == []


def test_other_arguments_explain_a_difference_only_if_they_mean_something(tmp_path: Path) -> None:
    """Addresses change in every run; the application's numbers may come from a fault before, but not from nowhere."""
    one = flow(tmp_path / "a", FILL, replace(ADD, arguments=1))
    two = flow(tmp_path / "b", FILL, replace(ADD, arguments=2, after={0: 7}))
    (finding,) = compare(one, two, "seed 1").findings
    assert (finding.kind, finding.task) == (Fault.INPUT_FROM_OUTSIDE, 1)
    unsteady = compare(one, flow(tmp_path / "c", FILL, replace(ADD, arguments=3)), "again").unsteady
    assert unsteady is not None
    assert unsteady.arguments.tolist() == [False, True]
    (finding,) = compare_ranks({0: one}, {0: two}, "seed 1", {0: unsteady})[0].findings
    assert (finding.kind, finding.task) == (Fault.OUTPUT_DIFFERS, 1)


def test_an_input_that_cannot_be_read_hides_no_difference(tmp_path: Path) -> None:
    read = replace(READ, before={}, after={1: 9})
    one, two = flow(tmp_path / "a", read), flow(tmp_path / "b", replace(read, after={1: 10}))
    (finding,) = compare(one, two, "seed 1").findings
    assert finding.kind is Fault.INPUT_FROM_OUTSIDE
    assert finding.evidence["evidence"] == "one of its inputs can't be read"


RECEIVE = Task("use", {5: R, 6: W}, (2, 30, 40), before={5: 6}, after={5: 6, 6: 11})


def test_what_another_rank_has_sent_is_its_own_fault(tmp_path: Path) -> None:
    """Rank 1 receives what rank 0 left, in both runs; only rank 0's task is reported."""
    received = replace(RECEIVE, before={5: 7}, after={5: 7, 6: 12})
    one = {0: flow(tmp_path / "a0", FILL, ADD), 1: flow(tmp_path / "a1", RECEIVE)}
    two = {0: flow(tmp_path / "b0", FILL, replace(ADD, after={0: 7})), 1: flow(tmp_path / "b1", received)}
    results = compare_ranks(one, two, "seed 1")
    assert [finding.kind for finding in results[0].findings] == [Fault.OUTPUT_DIFFERS]
    assert results[1].findings == ()
    assert (results[1].different, results[1].tolerated) == (1, 0)
    two[0] = flow(tmp_path / "c0", FILL, ADD)
    assert [finding.kind for finding in compare_ranks(one, two, "seed 1")[1].findings] == [Fault.INPUT_FROM_OUTSIDE]


def test_a_free_order_is_tolerated_on_the_ranks_that_receive_its_result(tmp_path: Path) -> None:
    add = Task("add", {0: RW | COMMUTE}, (2, 30, 40), before={0: 5})
    received = replace(RECEIVE, before={5: 10}, after={5: 10, 6: 12})
    sum_ = replace(RECEIVE, before={5: 9})
    one = {1: flow(tmp_path / "a1", sum_), 0: flow(tmp_path / "a0", FILL, add, READ)}
    other = replace(READ, before={0: 7}, after={0: 7, 1: 10})
    two = {1: flow(tmp_path / "b1", received), 0: flow(tmp_path / "b0", FILL, add, other)}
    results = compare_ranks(one, two, "seed 1")
    assert [(result.findings, result.tolerated) for result in results.values()] == [((), 1), ((), 1)]


def test_a_tolerance_bounds_what_a_free_order_may_change(tmp_path: Path) -> None:
    add = Task("add", {0: RW | COMMUTE}, (2, 30, 40), before={0: 5})
    contents = {6: 1.0, 7: 1.0 + 2**-52, 9: 3.0, 10: 3.5}
    one = flow(tmp_path / "a", FILL, add, READ, contents=contents)
    two = flow(tmp_path / "b", FILL, add, replace(READ, before={0: 7}, after={0: 7, 1: 10}), contents=contents)
    result = compare(one, two, "seed 1")
    tolerance = parse_tolerance("4ulp", "double")
    assert tolerance is not None
    (finding,) = beyond_tolerance(tolerance, one, two, result, "seed 1")
    assert (finding.kind, finding.task, finding.element) == (Fault.BEYOND_TOLERANCE, 2, 0)
    assert (finding.expected, finding.found) == ("3.0", "3.5")
    relative = parse_tolerance("0.2", "double")
    assert relative is not None
    assert list(beyond_tolerance(relative, one, two, result, "seed 1")) == []
    unrecorded = flow(tmp_path / "c", FILL, add, replace(READ, before={0: 7}, after={0: 7, 1: 10}))
    kinds = [finding.kind for finding in beyond_tolerance(relative, one, unrecorded, result, "seed 1")]
    assert kinds == [Fault.NOT_BOUNDED, Fault.NOT_BOUNDED]


def test_an_order_that_is_not_checked_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starpullm.probe.order._MOST_TASKS", 1)
    (note,) = broken_order("seed 1", flow(tmp_path / "a", FILL, ADD))
    assert (note.kind, note.kind.is_note) == (Fault.NOT_CHECKED, True)
    assert note.sentence.endswith("found 2 tasks, expected at most 1")
    monkeypatch.undo()
    (note,) = broken_order("seed 1", flow(tmp_path / "b", FILL, replace(ADD, modes={0: 0})))
    assert (note.kind, "found mode 0" in note.sentence) == (Fault.NOT_CHECKED, True)


def test_a_group_that_commutes_runs_in_any_order(tmp_path: Path) -> None:
    """The second that was submitted ran first: it found what the writer left, and the first what the second left."""
    first = Task("add", {0: RW | COMMUTE}, (2, 50, 60), before={0: 7})
    second = Task("add", {0: RW | COMMUTE}, (3, 30, 40), before={0: 5}, after={0: 7})
    run = flow(tmp_path / "a", FILL, first, second)
    assert list(changed_between("seed 1", run)) == []
    assert run.source.tolist() == [-1, 2, 0]
    wrong = flow(tmp_path / "b", FILL, replace(first, before={0: 8}), second, replace(ADD, times=(4, 70, 80)))
    assert [finding.task for finding in changed_between("seed 1", wrong)] == [1]
    in_order = flow(tmp_path / "c", FILL, replace(first, times=(2, 30, 40), before={0: 5}), second)
    assert compare(in_order, run, "seed 1").findings == ()


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        (
            [finding(Fault.ENDING, sentence="the program was ended by SIGSEGV")],
            "failed: the program was ended by SIG",
        ),
        (
            [finding(Fault.NOT_DETERMINISTIC, "again")],
            "not comparable: results change from run to run",
        ),
        (
            [finding(Fault.OTHER_TASKS)],
            "not comparable: the program submits other tasks",
        ),
        (
            [finding(Fault.READ_WRITTEN, codelet="add")],
            "differs: tasks of 1 codelet do something else",
        ),
        (
            [finding(Fault.OTHER_TASKS, "reference schedule, again")],
            "not comparable: the program submits other tasks from run to run in one and the same schedule",
        ),
        (
            [
                finding(Fault.CHANGING_INPUT, "again"),
                finding(Fault.READ_WRITTEN, codelet="add"),
            ],
            "differs: tasks of 1 codelet do something else than they declare; results change from run to run",
        ),
        (
            [finding(Fault.OUTPUT_DIFFERS)] * 2,
            "differs: results depend on the schedule (2 findings)",
        ),
    ],
)
def test_a_verdict_is_one_sentence(findings: list[ProgramFinding], sentence: str) -> None:
    assert verdict(findings).startswith(sentence)


def test_a_cause_comes_before_its_effects_which_are_no_findings() -> None:
    """An undeclared write explains what others find in the handle, poison that is read a wrong end; both came later."""
    victims = [
        finding(Fault.INPUT_FROM_OUTSIDE, codelet="use", handle=3),
        finding(Fault.CHANGED_BETWEEN, codelet="use", handle=3),
        finding(Fault.INPUT_CHANGED, codelet="use", handle=4),
        finding(Fault.POISONED_ENDING),
        finding(Fault.OUTPUT_DIFFERS, codelet="keep"),
    ]
    causes = [
        finding(Fault.UNDECLARED_WRITE, codelet="lie", handle=3),
        finding(Fault.WRITTEN_READ, codelet="keep", handle=5),
        finding(Fault.WRITTEN_READ, codelet="keep", handle=6),
    ]
    first, second, third = first_of_each([*victims, *causes])
    assert [(one.kind, one.count, one.effect) for one in (first, second, third)] == [
        (Fault.UNDECLARED_WRITE, 1, victims[0]),
        (Fault.WRITTEN_READ, 2, victims[4]),
        (Fault.INPUT_CHANGED, 1, None),
    ]
    assert not first.is_only_untrue
    assert verdict([first]).startswith("differs: results depend on the schedule")


def test_an_access_that_is_read_though_declared_written_is_one_finding() -> None:
    left = [finding(Fault.NOT_WRITTEN, codelet="keep", handle=handle) for handle in (5, 6)]
    read = finding(Fault.WRITTEN_READ, codelet="keep", handle=5)
    assert [(one.kind, one.handle, one.effect) for one in first_of_each([*left, read])] == [
        (Fault.WRITTEN_READ, 5, left[0]),
        (Fault.NOT_WRITTEN, 6, None),
    ]


def test_what_ran_beside_an_undeclared_write_to_its_handle_is_no_finding(tmp_path: Path) -> None:
    """Others stay findings, those with a pair of tasks first."""
    flows = {-1: flow(tmp_path / "a", FILL, ADD, READ)}
    write = finding(Fault.UNDECLARED_WRITE, codelet="lie", where="lie (task 9)", handle=1)
    victim, other = (
        finding(Fault.OUTPUT_DIFFERS, codelet=codelet, task=task, suspects=("fill (task 0)", "lie (task 9)"))
        for task, codelet in ((2, "read"), (1, "add"))
    )
    minimised = finding(Fault.OUTPUT_DIFFERS, codelet="share", task=1)
    found = first_of_each([victim, other, minimised, write], flows)
    assert [(one.codelet, one.effect) for one in found] == [("lie", victim), ("share", None), ("add", None)]


FRAMES = "\t0x1004\t0x1000\tcopy\t/no/libc.so.6\t0x2009\t0x2000\tupdate\t/no/heat"


def test_an_undeclared_access(tmp_path: Path) -> None:
    """The first read and the first write of a handle by a task, in the program's own function."""
    one = flow(tmp_path / "a", FILL, ADD, READ)
    lines = ["1\t1\t0\tr\t0", "1\t1\t0\tr\t0", "1\t1\t0\tw\t0", "2\t0\t0\tw\t1"]
    (tmp_path / "a" / "undeclared").write_text("".join(f"{line}{FRAMES}\n" for line in lines))
    found = list(undeclared_accesses("watched", one))
    kinds = [Fault.UNDECLARED_READ, Fault.UNDECLARED_WRITE, Fault.READ_WRITTEN]
    assert [(finding.kind, finding.task, finding.handle) for finding in found] == [
        (kinds[0], 1, 1),
        (kinds[1], 1, 1),
        (kinds[2], 2, 0),
    ]
    assert found[0].lines() == [
        "undeclared read  add (task 1)  reads data that it doesn't declare",
        "  handle     1: 8 bytes",
        "  element 0  in update (heat+0x8)",
    ]


@pytest.mark.parametrize("line", ["1\t1", "1\t1\t0\tr\t0\t0x1\t0x2\tupdate", "a\t1\t0\tr\t0"])
def test_an_undeclared_access_that_is_damaged(tmp_path: Path, line: str) -> None:
    one = flow(tmp_path / "a", FILL, ADD, READ)
    (tmp_path / "a" / "undeclared").write_text(f"{line}\n")
    with pytest.raises(FormatError, match="expected an access"):
        list(undeclared_accesses("watched", one))


def test_the_place_of_a_submission(tmp_path: Path) -> None:
    """It is the innermost one that isn't StarPU's, if a task of this codelet has this number in the log."""
    one = flow(tmp_path / "a", FILL, replace(ADD, stack=1))
    frames = (
        "\t0x1004\t0x1000\t\t/no/libstarpu-1.4.so.1\t0x2009\t0x2000\tinsert\t/no/libtiles.so\t0x3009\t0x3000\t\t/no/a"
    )
    (tmp_path / "a" / "stacks").write_text(f"1{frames}\n")
    of_handle = {"handle": "0: 8 bytes"}
    findings = [finding(Fault.OUTPUT_DIFFERS, evidence=of_handle, task=1, codelet=name) for name in ("add", "other")]
    of_add, of_other = with_places(findings, {-1: one})
    assert of_add.evidence == {"handle": "0: 8 bytes", "submitted": "in insert (libtiles.so+0x8)"}
    assert of_other == findings[1]


@pytest.mark.parametrize("line", ["1\t0x1", "stack", "1\tx\t0x1\tf\ta"])
def test_stacks_that_are_damaged(tmp_path: Path, line: str) -> None:
    one = flow(tmp_path / "a", FILL)
    (tmp_path / "a" / "stacks").write_text(f"{line}\n")
    with pytest.raises(FormatError, match="stacks: found "):
        with_places([], {-1: one})
