"""Contents that differ and mean nothing: the padding of structures, and addresses."""

from __future__ import annotations

from starpullm.checks.result import Outcome
from starpullm.probe.findings import Fault

from .conftest import Compile, probe


def test_padding_has_no_leavings_of_other_tasks(compiled: Compile) -> None:
    result = probe([str(compiled("contents")), "padding"], runs=3)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.sentence.startswith("same: ")


def test_addresses_are_said_to_be_such(compiled: Compile) -> None:
    """The numbers that lie there aren't compared; other contents are."""
    result = probe([str(compiled("contents")), "addresses"], runs=3)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.sentence.startswith("same in what was seen: ")
    assert any("differ in addresses" in line for line in result.unseen)
    assert [note.codelet for note in result.notes if note.kind is Fault.NOT_CHECKED] == ["append"]
    lie = probe([str(compiled("contents")), "addresses_beside_a_lie"], runs=3)
    assert [(finding.kind, finding.codelet) for finding in lie.findings] == [(Fault.OUTPUT_DIFFERS, "count")]
