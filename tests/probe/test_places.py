"""From a finding to the source: where its task was submitted, and its handle registered."""

from __future__ import annotations

from pathlib import Path

from starpullm.probe.findings import Fault

from .conftest import SOURCES, Compile, probe


def line_of(comment: str) -> int:
    lines = (SOURCES / "places.c").read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"// {comment}"))


def test_a_finding_says_where_its_task_and_its_handle_come_from(compiled: Compile, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    result = probe([str(compiled("places"))], runs=1, keep=logs)
    finding, of_part = result.findings
    assert (finding.kind, finding.task) == (Fault.READ_WRITTEN, 200), result.lines()
    assert "changed its contents" in finding.sentence
    assert "handle 1 at (4, 1) (64 elements of 8 bytes)" in finding.sentence
    places = (
        f"submitted in insert (places.c:{line_of('submission')}), called in submit_all (places.c:"
        f"{line_of('its caller')}); handle 1 is its access 1, registered in tile (places.c:{line_of('registration')}), "
        f"called in main (places.c:{line_of('second tile')})"
    )
    assert finding.places == places
    assert f"  {places}" in list(result.details())
    part = f"a part, from element 128 on, of the one registered in submit_parts (places.c:{line_of('the whole')})"
    assert f"; handle 3 is its access 1, {part}" in of_part.places
    # Three of registrations, four of submissions.
    (stacks,) = (logs / "reference-schedule").glob("probe-*/stacks")
    assert len(stacks.read_text("utf-8").splitlines()) == 7
    others = [path for path in logs.glob("*/probe-*/stacks") if path != stacks]
    assert all(path.read_bytes() == b"" for path in others)
