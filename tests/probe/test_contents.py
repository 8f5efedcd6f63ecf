"""Contents that differ and mean nothing: the padding of structures, and addresses."""

from __future__ import annotations

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Fault

from .conftest import Compile, probe


def test_padding_has_no_leavings_of_other_tasks(compiled: Compile) -> None:
    result = probe([str(compiled("contents")), "padding"], runs=3)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.sentence.startswith("same: ")


def check_addresses(program: str, name: str, codelet: str) -> None:
    result = probe([program, name], runs=3)
    lines = "\n".join(result.lines())
    assert result.outcome is Outcome.PASSED, lines
    assert result.sentence.startswith("same in what was seen: "), lines
    assert any("differ in addresses" in line for line in result.unseen), lines
    assert [note.codelet for note in result.notes if note.kind is Fault.NOT_CHECKED] == [codelet], lines


def test_addresses_are_said_to_be_such(compiled: Compile) -> None:
    """The numbers that lie there aren't compared; other contents are."""
    program = str(compiled("contents"))
    check_addresses(program, "addresses", "append")
    lie = probe([program, "addresses_beside_a_lie"], runs=3)
    found = [(finding.kind, finding.codelet) for finding in lie.findings]
    assert found == [(Fault.OUTPUT_DIFFERS, "count")], "\n".join(lie.lines())


def test_addresses_that_change_from_run_to_run_are_no_finding(compiled: Compile) -> None:
    """Which thread gets which part of the heap depends on the load."""
    program = str(compiled("contents"))
    check_addresses(program, "addresses_by_chance", "set_anywhere")
    check_addresses(program, "addresses_not_again", "set_elsewhere_once")
