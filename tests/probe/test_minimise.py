"""A difference between two schedules, minimised to two tasks whose order is enough for it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from starpullm.commands.main import main
from starpullm.probe import ProbeResult
from starpullm.probe.findings import Fault, ProgramFinding
from starpullm.probe.minimise import MINIMISED
from starpullm.probe.replay import schedule_of

from .conftest import Compile, probe

BLOCKS = 8  # of heat.c


def minimised(result: ProbeResult) -> tuple[ProgramFinding, int, int]:
    """Return the first finding about results, the task that waits, and the one for which."""
    finding = next(one for one in result.findings if one.kind in MINIMISED)
    words = re.fullmatch(r"reference schedule, task (\d+) waits for task (\d+)", finding.schedule)
    assert words is not None, result.lines()
    return finding, int(words[1]), int(words[2])


def test_a_pair_of_tasks_shares_what_they_do_not_declare(compiled: Compile) -> None:
    """Two updates conflict only if their blocks are neighbours, and one step is between them."""
    result = probe([str(compiled("heat"))], runs=2)
    finding, held, until = minimised(result)
    assert finding.kind is Fault.OUTPUT_DIFFERS
    (step, block), (other_step, other_block) = divmod(held, BLOCKS), divmod(until, BLOCKS)
    assert abs(step - other_step) == 1, finding
    assert (block - other_block) % BLOCKS in (1, BLOCKS - 1), finding
    assert f" if update (task {held}) waits for update (task {until}); found in " in finding.evidence["evidence"]
    assert f" in the reference schedule, {finding.found} here; " in finding.evidence[f"element {finding.element}"]
    assert finding.suspects == ()
    printed = finding.evidence["again"]
    assert shlex.quote(finding.schedule) in printed
    assert CliRunner().invoke(main, shlex.split(printed)[1:]).exit_code == 0
    again = schedule_of(finding.schedule)
    assert (again.name, again.held, again.until) == (finding.schedule, (held,), until)


def test_the_task_that_writes_is_named_and_not_its_victims(scenarios: Path) -> None:
    """An undeclared write (task 6) is harmless before task 7, and not behind it: the reader's order means nothing."""
    result = probe([str(scenarios), "overwritten_undeclared"], runs=6)
    lines = "\n".join(result.lines())
    (finding,) = result.findings
    assert (finding.kind, finding.codelet, finding.task) == (Fault.UNDECLARED_WRITE, "write_neighbour", 6), lines
    assert finding.schedule == "reference schedule, task 6 waits for task 7", lines
    assert finding.evidence["handle"].startswith("1: 64 × 8 bytes, registered in "), lines
    assert finding.effect is not None
    assert finding.effect.kind is Fault.INPUT_CHANGED, lines
    assert not result.is_only_untrue
