"""What tasks declare to overwrite, with two kinds of poison in it: who uses it is named, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import POISONED

from .conftest import Compile, probe


@pytest.fixture(scope="module")
def poison(compiled: Compile) -> Path:
    return compiled("poison")


@pytest.mark.parametrize(
    ("name", "kind", "codelet", "access"),
    [
        ("scales_zeros", Fault.WRITTEN_READ, "scale_floats", 0),
        ("keeps_the_larger", Fault.WRITTEN_READ, "keep_larger", 0),
        ("chooses_by_the_sign", Fault.WRITTEN_READ, "choose_positive", 0),
        ("chooses_by_bytes", Fault.WRITTEN_READ, "choose_set", 0),
        ("counts_down", Fault.WRITTEN_READ, "count_down", 0),
        ("marks_until_nothing_changes", Fault.WRITTEN_READ, "mark", 0),
        ("reads_the_second_of_two", Fault.WRITTEN_READ, "add_and_fill_second", 1),
        ("reads_scratch_beside_a_write", Fault.SCRATCH_READ, "add_second", 1),
        ("copies_scratch", Fault.SCRATCH_READ, "copy_second", 1),
    ],
)
def test_the_access_that_is_read_is_named(poison: Path, name: str, kind: Fault, codelet: str, access: int) -> None:
    result = probe([str(poison), name], runs=1)
    assert result.outcome is Outcome.FAILED, result.lines()
    assert [(finding.kind, finding.codelet) for finding in result.findings] == [(kind, codelet)], result.lines()
    handle = result.findings[0].evidence["handle"]
    assert handle.startswith(f"{access}: ")
    assert f", access {access}, " in handle


def test_what_is_only_compared_shows_in_the_output(poison: Path) -> None:
    """Both kinds of poison are other numbers than any that the tasks write."""
    result = probe([str(poison), "prints_how_many_changed"], runs=1)
    assert [finding.kind for finding in result.findings] == [Fault.OTHER_OUTPUT], result.lines()
    assert (result.findings[0].evidence["here"], result.findings[0].schedule) == ("66", POISONED[0].name)


@pytest.mark.parametrize(
    ("name", "noted"),
    [("writes_a_byte", ["set_first_byte"]), ("sums_samples", []), ("copies_what_is_left", ["fill_half"])],
)
def test_what_is_left_and_not_used_is_no_finding(poison: Path, name: str, noted: list[str]) -> None:
    result = probe([str(poison), name], runs=1)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert [note.codelet for note in result.notes if note.kind is Fault.LEFT_UNWRITTEN] == noted, result.lines()
