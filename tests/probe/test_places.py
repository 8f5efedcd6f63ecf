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
    assert finding.where.endswith(f" (task 200), places.c:{line_of('submission')}")
    assert finding.sentence == "changes data that it declares to read only"
    assert finding.evidence["handle"] == (
        f"1 at (4, 1): 64 × 8 bytes, access 1, registered in tile (places.c:{line_of('registration')}), called in main "
        f"(places.c:{line_of('second tile')})"
    )
    submitted = f"in insert (places.c:{line_of('submission')}), called in submit_all (places.c:{line_of('its caller')})"
    assert finding.evidence["submitted"] == submitted
    assert f"  submitted  {submitted}" in list(result.details())
    part = f"a part, from element 128 on, of the one registered in submit_parts (places.c:{line_of('the whole')})"
    assert of_part.evidence["handle"].startswith("3: ")
    assert f", access 1, {part}" in of_part.evidence["handle"]
    # Three of registrations, four of submissions.
    (stacks,) = (logs / "reference-schedule").glob("probe-*/stacks")
    assert len(stacks.read_text("utf-8").splitlines()) == 7
    others = [path for path in logs.glob("*/probe-*/stacks") if path != stacks]
    assert all(path.read_bytes() == b"" for path in others)
