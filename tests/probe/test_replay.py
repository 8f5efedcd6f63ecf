"""A schedule of a probe once more, in the foreground; and logs that are kept."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from starpullm.commands.main import main
from starpullm.errors import InvalidArgumentError
from starpullm.files.probe_log import read_probe_log
from starpullm.probe import probe_program
from starpullm.probe.probe_schedules import STANDARD, WATCHED, PoisonMode
from starpullm.probe.replay import replay_program, schedule_of


def test_the_words_of_schedules() -> None:
    assert all(schedule_of(schedule.name) is schedule for schedule in STANDARD)
    again = schedule_of("seed 3, 1 worker, 420 us")
    assert (again.seed, again.max_workers, again.delay_us, again.poison) == (3, 1, 420, PoisonMode.NONE)
    with pytest.raises(InvalidArgumentError, match="found 'seed 3', expected what a probe names"):
        schedule_of("seed 3")


def test_the_command_that_a_probe_prints(scenarios: Path, tmp_path: Path) -> None:
    """It runs the schedule of the first finding, behind a wrapper that sees the variables of that schedule."""
    result = probe_program([str(scenarios), "writes_what_it_reads"], runs=1, workers=2, keep=tmp_path / "logs")
    arguments = shlex.split(result.findings[0].evidence["again"])[1:]
    assert arguments[:5] == ["probe", "--workers", "2", "--replay", result.findings[0].schedule]
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\nenv >"$1"; shift; exec "$@"\n')
    wrapper.chmod(0o755)
    place = arguments.index("--")
    arguments[place:place] = ["--wrapper", f"{wrapper} {tmp_path}/variables"]
    run = CliRunner().invoke(main, arguments)
    assert run.exit_code == 0, run.output
    variables = (tmp_path / "variables").read_text("utf-8").splitlines()
    assert {"STARPU_SCHED=probe", "STARPU_NCPU=2", "STARPULLM_PROBE_MAX_WORKERS=1"} <= set(variables)


def test_the_programs_status_is_returned(scenarios: Path) -> None:
    assert replay_program([str(scenarios), "fails"], WATCHED.name, workers=2) == 3


def test_logs_are_kept(scenarios: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    result = probe_program([str(scenarios), "right"], runs=1, workers=2, keep=logs)
    folders = sorted(path.parent.name for path in logs.glob("*/stdout"))
    assert len(folders) == result.runs + 1
    assert "seed-1-2-workers-5000-us" in folders
    (log,) = (logs / "reference-schedule").glob("probe-*")
    assert len(read_probe_log(log).tasks) >= result.num_tasks
    with pytest.raises(InvalidArgumentError, match="expected a new folder"):
        probe_program([str(scenarios), "right"], runs=1, workers=2, keep=logs)
