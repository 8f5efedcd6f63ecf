"""Programs with one mistake each, and right ones: what the probe says of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.result import Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.files.probe_log import read_probe_log
from starpullm.probe import ProbeResult, probe_program
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import REFERENCE, REPEATED

from . import conftest


def probe(scenarios: Path, name: str, *, runs: int = 2, **options: Any) -> ProbeResult:
    return conftest.probe([str(scenarios), name], runs=runs, **options)


@pytest.mark.parametrize(
    ("name", "num_tasks"),
    [
        ("right", 31),
        ("acquires", 103),
        ("partitions", 57),
        ("commute", 13),
        ("forks", 55),
        ("own_policy", 31),
        ("aliases", 33),
    ],
)
def test_right_programs(scenarios: Path, name: str, num_tasks: int) -> None:
    result = probe(scenarios, name)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.findings == ()
    assert (result.num_tasks, result.runs) == (num_tasks, 6)
    assert result.compared > num_tasks
    assert result.tolerated == 0


def test_a_reduction_may_differ(scenarios: Path) -> None:
    """The bits of a sum depend on which worker adds what; how many contents differ is the scheduler's choice."""
    result = probe(scenarios, "redux")
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.tolerated == result.different
    assert (REPEATED.name in result.seconds) == (result.different > 0)


def test_a_tolerance_bounds_a_free_order(scenarios: Path) -> None:
    rounds = probe(scenarios, "rounds", runs=3, tolerance="8ulp")
    assert rounds.outcome is Outcome.PASSED, rounds.lines()
    assert (rounds.tolerated, rounds.tolerance) == (rounds.different, "8 ULP")
    cancels = probe(scenarios, "cancels", runs=3, tolerance="8ulp")
    assert cancels.outcome is Outcome.FAILED, cancels.lines()
    (finding,) = cancels.findings
    assert (finding.kind, finding.codelet, finding.task, finding.element) == (Fault.BEYOND_TOLERANCE, "add", 12, 0)
    assert finding.sentence == "finds numbers that differ by more than 8 ULP because of a free order"
    numbers = f"{finding.expected} in the reference schedule, {finding.found} here"
    assert finding.evidence["element 0"].startswith(numbers)
    assert finding.evidence["handle"].startswith("6: ")


@pytest.mark.parametrize("name", ["cancels", "redux"])
def test_sums_in_the_order_of_submission_have_the_same_bits(scenarios: Path, name: str) -> None:
    free = probe(scenarios, name, runs=3)
    assert free.tolerated > 0, free.lines()
    ordered = probe(scenarios, name, runs=3, sums="ordered")
    assert ordered.outcome is Outcome.PASSED, ordered.lines()
    assert (ordered.different, ordered.tolerated) == (0, 0)
    # Without the watched run, and those with poison are compared with each other.
    assert ordered.compared / (ordered.runs - 2) >= free.compared / (free.runs - 2)


def test_an_ordered_reduction_hides_no_undeclared_read(scenarios: Path) -> None:
    assert probe(scenarios, "reduces_undeclared", runs=3).outcome is Outcome.PASSED
    ordered = probe(scenarios, "reduces_undeclared", runs=3, sums="ordered")
    (finding,) = ordered.findings
    assert (finding.kind, finding.codelet) == (Fault.INPUT_FROM_OUTSIDE, "add"), ordered.lines()
    assert finding.evidence["evidence"].endswith("equal inputs: one of them reads data that it doesn't declare")
    assert finding.evidence["again"].startswith("starpullm probe --workers 4 --sums ordered --replay ")


LIES = {
    "reads_undeclared": (4, Fault.OUTPUT_DIFFERS, "read_neighbour", 7),
    "shares_undeclared": (4, Fault.OUTPUT_DIFFERS, "share", 6),
    "writes_what_it_reads": (1, Fault.READ_WRITTEN, "write_second", 30),
    "reads_what_it_writes": (1, Fault.WRITTEN_READ, "smooth", 6),
    "writes_nothing": (1, Fault.NOT_WRITTEN, "touch", 6),
    "declares_its_input_as_written": (1, Fault.WRITTEN_READ, "copy", 6),
}


@pytest.mark.parametrize("name", LIES)
def test_the_task_that_lies_is_named(scenarios: Path, name: str) -> None:
    runs, kind, codelet, task = LIES[name]
    result = probe(scenarios, name, runs=runs)
    assert result.outcome is Outcome.FAILED, result.lines()
    assert [finding.kind for finding in result.findings] == [kind], result.lines()
    assert result.findings[0].codelet == codelet
    assert result.findings[0].task >= task
    if name == "declares_its_input_as_written":
        assert result.findings[0].evidence["handle"].startswith("1: ")
    assert result.findings[0].where.startswith(f"{codelet} (task ")
    if name == "shares_undeclared":
        assert result.findings[0].element == 0
        assert result.findings[0].evidence["element 0"].startswith("0x")
    assert result.tolerated == 0


def test_an_undeclared_write_is_found_between_two_tasks(scenarios: Path) -> None:
    """The order of two tasks tells which of those in between it was."""
    result = probe(scenarios, "writes_undeclared")
    lines = "\n".join(result.lines())
    assert result.outcome is Outcome.FAILED, lines
    (finding,) = result.findings
    assert (finding.kind, finding.codelet) == (Fault.UNDECLARED_WRITE, "write_neighbour"), lines
    assert finding.evidence["handle"].startswith("1: 64 × 8 bytes, "), lines
    assert finding.effect is not None
    assert finding.effect.codelet == "smooth", lines


def test_notes(scenarios: Path) -> None:
    """What no result depends on here is said, and isn't a fault."""
    left = probe(scenarios, "leaves_what_it_writes")
    assert [(note.kind, note.codelet) for note in left.notes] == [(Fault.LEFT_UNWRITTEN, "copy_half")]
    assert "leaves 256 of the 512 bytes as they were" in left.notes[0].sentence
    needless = probe(scenarios, "needless_update")
    assert needless.outcome is Outcome.PASSED
    assert {(note.kind, note.codelet) for note in needless.notes} == {(Fault.NEVER_CHANGED, "touch")}


def test_a_program_that_is_not_deterministic(scenarios: Path) -> None:
    result = probe(scenarios, "not_deterministic")
    assert result.outcome is Outcome.NOT_COMPARABLE
    assert [(finding.kind, finding.task) for finding in result.findings] == [(Fault.NOT_DETERMINISTIC, 6)]


def test_an_unsteady_task_is_left_out_with_those_behind_it(scenarios: Path) -> None:
    """The others are judged."""
    result = probe(scenarios, "stamps")
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.sentence.startswith("same in what was seen: ")
    contents = 3 * (result.runs - 3)  # not in the watched run and the one that shows it; two with poison are one
    assert result.unseen == (f"{contents} contents of tasks that use what changes from run to run by itself",)
    assert [(note.codelet, note.task) for note in result.notes if note.kind is Fault.NOT_CHECKED] == [("stamp", 0)]
    shares = probe(scenarios, "stamps_and_shares", runs=4)
    assert [(finding.kind, finding.codelet) for finding in shares.findings] == [(Fault.OUTPUT_DIFFERS, "share")]


def test_a_crash(scenarios: Path) -> None:
    result = probe(scenarios, "crashes")
    assert result.outcome is Outcome.FAILED
    assert [finding.kind for finding in result.findings] == [Fault.ENDING]
    text = "\n".join(result.lines())
    assert "the program was ended by SIGSEGV" in text
    assert "31 of 56 submitted tasks had ended" in text
    assert "the signal came in crash (task 31)" in text


@pytest.mark.parametrize("name", ["asserts", "asserts_at_once"])
def test_starpus_assertion(scenarios: Path, name: str) -> None:
    text = "\n".join(probe(scenarios, name).lines())
    assert "the program was ended by SIGABRT" in text
    assert "is not initialized, it cannot be read" in text or "src_node_mask != 0" in text  # of StarPU 1.5


def test_a_hang(scenarios: Path) -> None:
    text = "\n".join(probe(scenarios, "hangs", time_limit=2).lines())
    assert "had not ended after 2 s" in text
    assert "running: never_end (task 31)" in text
    assert "ready: smooth (task 32)" in text


def test_a_program_that_fails(scenarios: Path) -> None:
    result = probe(scenarios, "fails", runs=1)
    assert result.outcome is Outcome.FAILED
    assert result.findings[0].sentence == "the program ended with exit status 3"


def test_what_the_program_prints_is_a_result(scenarios: Path) -> None:
    (early,) = probe(scenarios, "prints_without_waiting").findings
    assert early.kind is Fault.OTHER_OUTPUT
    assert len(early.evidence["here"].split()) == len(early.evidence["reference schedule"].split()) == 1
    (left,) = probe(scenarios, "prints_what_is_left").findings
    assert (left.kind, left.codelet) == (Fault.PARTLY_WRITTEN, "copy_half")
    assert left.evidence["evidence"].startswith("the application uses that")
    assert probe(scenarios, "prints_in_any_order", runs=4).outcome is Outcome.PASSED
    for name in ("prints_workers", "prints_numbers_of_tasks"):
        workers = probe(scenarios, name)
        assert (workers.outcome, workers.findings) == (Outcome.PASSED, ()), workers.lines()
        words = "standard output is compared on one worker only: it says which workers run tasks, or how long"
        assert words in workers.surroundings
    for name in ("prints_a_free_sum", "prints_whether_it_took_long"):
        changing = probe(scenarios, name, runs=4)
        assert (changing.outcome, changing.findings) == (Outcome.PASSED, ()), changing.lines()
    (early,) = probe(scenarios, "prints_workers_and_without_waiting").findings
    assert early.kind is Fault.OTHER_OUTPUT
    assert "4 workers" not in early.schedule
    timed = probe(scenarios, "prints_the_time")
    assert timed.outcome is Outcome.PASSED, timed.lines()
    assert "standard output isn't compared: it changes from run to run by itself" in timed.surroundings


def test_a_program_that_fails_because_of_the_reference_schedule(scenarios: Path) -> None:
    result = probe(scenarios, "fails_on_one_worker")
    assert result.outcome is Outcome.PASSED, result.lines()
    (note,) = (note for note in result.notes if note.kind is Fault.NOT_CHECKED)
    assert note.sentence == "the program ended with exit status 1"
    assert note.evidence["without the probe"].startswith("the program ended with exit status 0")


def test_another_exit_status_may_be_expected(scenarios: Path) -> None:
    assert probe(scenarios, "fails", runs=1, expect_status=3).outcome is Outcome.PASSED
    (ending,) = probe(scenarios, "right", runs=1, expect_status=3).findings
    assert (ending.kind, ending.sentence) == (Fault.ENDING, "the program ended with exit status 0")


def test_two_processes_of_one_number(scenarios: Path, tmp_path: Path) -> None:
    """Those of two nodes, or of two PID namespaces, write into one directory: each has a log of its own."""
    environment = {**os.environ, **REFERENCE.environment(tmp_path, 2)}
    code = 'mkdir "$1/probe-$$" && exec "$2" commute'
    subprocess.run(["sh", "-c", code, "sh", tmp_path, scenarios], env=environment, timeout=60, check=True)
    other, own = sorted(tmp_path.glob("probe-*"))
    assert own.name.startswith(f"{other.name}-")
    assert list(other.iterdir()) == []
    assert len(read_probe_log(own).tasks) > 0


def test_much_output_is_not_kept(scenarios: Path) -> None:
    """128 MiB on two streams."""
    result = probe(scenarios, "noisy", runs=1)
    assert result.outcome is Outcome.PASSED, result.lines()


def test_a_child_that_stays_is_ended(scenarios: Path) -> None:
    assert probe(scenarios, "leaves_child", runs=1).outcome is Outcome.PASSED
    left = subprocess.run(["pgrep", "-f", f"{scenarios} leaves_child"], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def refusal(command: list[str], **options: object) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        probe_program(command, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_programs_that_cannot_be_judged(scenarios: Path, tmp_path: Path) -> None:
    program = str(scenarios)
    sentence = refusal([program, "no_tasks"])
    assert (
        "submitted no task with a codelet in a scheduling context without a policy of its own (it ended with exit "
        "status 0), expected arguments, or input, with which it does"
    ) in sentence
    assert "expected the name of a program" in refusal([program, "unknown"])
    assert "didn't start StarPU, expected a StarPU program" in refusal(["/bin/false"])
    assert "there is no such file" in refusal([str(tmp_path / "missing")])
    assert "is a folder" in refusal([str(tmp_path)])
    script = tmp_path / "script"
    script.write_text("true\n")
    assert "is not executable" in refusal([str(script)])


def test_a_static_program(tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    program = tmp_path / "static"
    subprocess.run(["cc", "-static", "-o", program, source], check=True, timeout=60)
    assert "is statically linked" in refusal([str(program)])


def test_another_version_of_starpu(scenarios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe asks the StarPU of the program for its version; here a library before it answers."""
    source, library = tmp_path / "version.c", tmp_path / "version.so"
    source.write_text("void starpu_get_version(int *a, int *b, int *c) { *a = 1; *b = 4; *c = 98; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    sentence = refusal([str(scenarios), "right"])
    assert "found StarPU 1.4.98 (" in sentence
    assert "), expected 1.4." in sentence


def test_arguments_out_of_range(scenarios: Path) -> None:
    for name in ("runs", "seed", "workers"):
        assert refusal([str(scenarios), "right"], **{name: 0}) == f"{name}: found 0, expected at least 1"
    assert "time_limit: found 0" in refusal([str(scenarios), "right"], time_limit=0)
    assert "without the type of the numbers" in refusal([str(scenarios), "right"], tolerance="4ulp")
