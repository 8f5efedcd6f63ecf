"""Programs of a few tasks on which a verdict is easily wrong: each must be called same or not for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from starpullm.checks.result import Outcome
from starpullm.commands.main import main
from starpullm.errors import InvalidArgumentError
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import PROMPT

from .conftest import Compile, probe


@pytest.fixture(scope="module")
def verdicts(compiled: Compile) -> Path:
    return compiled("verdicts")


@pytest.mark.parametrize(
    ("name", "runs", "noted"),
    [
        ("written_then_commutes", 3, ""),  # the first of the group to run isn't the first that was submitted
        ("every_write_commutes", 3, ""),
        ("leavings_are_copied", 1, "fill_half"),
        ("nothing_written_nobody_reads", 1, "touch"),
        ("pads", 1, "set_records"),
        ("used_memory", 1, "fill_half"),
    ],
)
def test_no_false_alarm(verdicts: Path, name: str, runs: int, noted: str) -> None:
    result = probe([str(verdicts), name], runs=runs)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.compared > 0
    left = [note.codelet for note in result.notes if note.kind is Fault.LEFT_UNWRITTEN]
    assert left == ([noted] if noted else []), result.lines()


@pytest.mark.parametrize(
    ("name", "runs", "kind", "codelet", "words"),
    [
        ("updates_what_it_writes", 1, Fault.WRITTEN_READ, "update_half", ""),
        (
            "leavings_are_used",
            1,
            Fault.PARTLY_WRITTEN,
            "fill_half",
            "leaves 256 of the 512 bytes as they were that it declares to write: 0: 64 × 8 bytes, access 0, "
            "sum (task 8) uses that",
        ),
        (
            "leavings_are_handed_on",
            1,
            Fault.PARTLY_WRITTEN,
            "fill_half",
            "fill_half (task 7), ",
        ),
        ("reduces_what_it_writes", 1, Fault.WRITTEN_READ, "add_sum", "what it declares to overwrite: 2: "),
        ("what_the_application_wrote_is_left", 1, Fault.NOT_WRITTEN, "touch", ""),
        ("temporaries", 1, Fault.PARTLY_WRITTEN, "fill_half", ""),
        ("undeclared_beside_a_sum", 3, Fault.OUTPUT_DIFFERS, "read_neighbour", ""),
        (
            "scratch_that_lasts",
            1,
            Fault.SCRATCH_READ,
            "share_scratch",
            "reads scratch memory that it has not written: ",
        ),
        ("written_without_waiting", 1, Fault.INPUT_FROM_OUTSIDE, "smooth", "smooth (task 1), "),
    ],
)
def test_no_wrong_same(verdicts: Path, name: str, runs: int, kind: Fault, codelet: str, words: str) -> None:
    result = probe([str(verdicts), name], runs=runs)
    assert result.outcome is Outcome.FAILED, result.lines()
    assert [(finding.kind, finding.codelet) for finding in result.findings] == [(kind, codelet)]
    finding = result.findings[0]
    parts = (finding.evidence["handle"].partition(", registered")[0], finding.evidence["evidence"])
    assert words in f"{finding.where}, {finding.sentence}: {', '.join(parts)}"
    assert result.is_only_untrue is kind.is_declaration


def test_what_the_application_reads_without_waiting(verdicts: Path) -> None:
    """What it submits depends on that."""
    result = probe([str(verdicts), "read_without_waiting"], runs=1)
    assert result.outcome is Outcome.NOT_COMPARABLE, result.lines()
    assert [(one.kind, one.schedule) for one in result.findings] == [(Fault.OTHER_TASKS, PROMPT.name)]


def test_what_is_intended_is_no_fault(verdicts: Path, tmp_path: Path) -> None:
    """Its reason is printed; an entry about something else is said to be unused, and excuses nothing."""
    file = tmp_path / "intended.toml"
    entry = '[[intended]]\nfinding = "declared written, but not all of it was"\ncodelet = "{}"\nreason = "a flag"\n'
    file.write_text(entry.format("fill_half") + entry.format("other"))
    command = ["probe", "--runs", "1", "--intended", str(file), "--", str(verdicts), "leavings_are_used"]
    run = CliRunner().invoke(main, command)
    assert run.exit_code == 0, run.output
    assert "declares, but for what is intended\n" in run.output
    assert "  intended: declared written, but not all of it was  fill_half (task 6)  leaves 256 " in run.output
    assert ": a flag\n" in run.output
    assert "  intended, but not found: declared written, but not all of it was, other: a flag\n" in run.output
    file.write_text(entry.format("other"))
    run = CliRunner().invoke(main, command)
    assert run.output.startswith("probe: differs: tasks of 1 codelet do something else than they declare"), run.output
    assert run.exit_code == 5


def test_what_the_application_reads_at_the_end_is_bounded(verdicts: Path) -> None:
    result = probe([str(verdicts), "sum_that_the_application_reads"], runs=3, tolerance="8ulp")
    assert [finding.kind for finding in result.findings] == [Fault.BEYOND_TOLERANCE], result.lines()
    assert result.findings[0].where == "the application at the end"


def test_codelets_without_names_are_told_apart(verdicts: Path) -> None:
    """By the name that the program gives to the function, or by where a function lies that the linker doesn't know."""
    first, second = (finding.codelet for finding in probe([str(verdicts), "without_names"], runs=1).findings)
    assert (first, second.partition("+")[0]) == ("double_half", "verdicts")


def test_disturbed_schedules_run_also_if_poison_makes_the_program_fail(verdicts: Path) -> None:
    result = probe([str(verdicts), "fails_with_poison"], runs=3)
    first, second = result.findings
    assert (first.kind, first.codelet) == (Fault.WRITTEN_READ, "update_half")
    assert first.effect is not None
    assert first.effect.kind is Fault.POISONED_ENDING
    assert (second.kind, second.codelet) == (Fault.OUTPUT_DIFFERS, "read_neighbour")
    without = probe([str(verdicts), "fails_with_poison"], runs=3, poison=False)
    assert [finding.kind for finding in without.findings] == [Fault.OUTPUT_DIFFERS]
    assert without.runs == result.runs - 2


def test_nothing_is_written_into_the_users_folder_of_starpu(
    verdicts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("STARPU_HOME", "STARPU_PERF_MODEL_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    probe([str(verdicts), "every_write_commutes"], runs=1)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_program_of_ranks_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\./no-such-program: there is no such file"):
        probe(["mpirun", "-n", "2", "./no-such-program"], runs=1)


def test_exit_status_and_verdict(verdicts: Path) -> None:
    """The others are those of what is intended."""
    run = CliRunner().invoke(main, ["probe", "--runs", "2", "--", str(verdicts), "undeclared_beside_a_sum"])
    first, second, *_ = run.output.splitlines()
    assert (run.exit_code, first.partition(" (")[0]) == (1, "probe: differs: results depend on the schedule"), (
        run.output
    )
    assert second.startswith("  run: ")
