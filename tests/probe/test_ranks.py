"""Programs over MPI ranks: each rank records, and there is one verdict, which names ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.result import Outcome
from starpullm.probe import ProbeResult
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import REFERENCE
from starpullm.probe.recorded import record

from . import conftest


def probe(ranks: list[str], name: str, **options: Any) -> ProbeResult:
    result = conftest.probe([*ranks, name], runs=1, workers=2, **options)
    left = subprocess.run(["pgrep", "-f", f"{ranks[-1]} {name}"], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    return result


def test_a_right_program_whose_sum_has_any_order(ranks: list[str]) -> None:
    """What is received changes without a task, and what comes from the sum may differ, also on the other rank."""
    result = probe(ranks, "commute", tolerance="1e-12")
    assert result.outcome is Outcome.PASSED, result.lines()
    assert (result.num_ranks, result.num_tasks, result.findings) == (2, 2 * 19, ())
    assert result.tolerated == result.different


def test_the_rank_whose_task_lies_is_named(ranks: list[str]) -> None:
    """The other rank receives other contents; that isn't its fault."""
    result = probe(ranks, "shares_undeclared")
    assert result.outcome is Outcome.FAILED, result.lines()
    assert [(finding.kind, finding.codelet, finding.rank) for finding in result.findings] == [
        (Fault.OUTPUT_DIFFERS, "share", 1)
    ], result.lines()
    assert " of rank 1, ranks.c:" in result.findings[0].where
    assert result.different > result.findings[0].count


def test_ranks_find_the_machine_measured(ranks: list[str], tmp_path: Path) -> None:
    """One that measures it beside another ends now and then, in StarPU's check_bus_config_file."""
    launcher = tmp_path / "mpirun"
    launcher.write_text(f'#!/bin/sh\nls "$STARPU_PERF_MODEL_DIR/bus"; exec {ranks[0]} "$@"\n')
    launcher.chmod(0o755)
    run = record([str(launcher), *ranks[1:], "commute"], REFERENCE, tmp_path / "run", 2, 60)
    assert run.ending.status == 0
    assert ".config\n" in (tmp_path / "run" / "stdout").read_text()


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("crashes", "rank 1 was ended by SIGSEGV"),
        ("is_killed", "rank 1 was killed, or left without exit()"),
        ("leaves_early", "rank 1 hadn't started StarPU"),
    ],
)
def test_a_rank_that_dies_is_named(ranks: list[str], name: str, ending: str) -> None:
    result = probe(ranks, name)
    assert [finding.kind for finding in result.findings] == [Fault.ENDING]
    assert ending in result.findings[0].sentence, result.lines()
    assert name == "leaves_early" or "rank 0" not in result.findings[0].sentence


def test_a_rank_that_hangs_is_named(ranks: list[str]) -> None:
    """The other one waits for what it is to send."""
    (finding,) = probe(ranks, "hangs", time_limit=3).findings
    assert "had not ended after 3 s: rank 0 was running no task, rank 1 was running never_end (task 12)" in (
        finding.sentence
    )
