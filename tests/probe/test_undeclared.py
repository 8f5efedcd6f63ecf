"""Accesses to handles that a task doesn't declare: seen when they happen, and named with the line of the source."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from starpullm.checks.result import Outcome
from starpullm.probe import ProbeResult, program_runs
from starpullm.probe.findings import Fault
from starpullm.probe.probe_schedules import REFERENCE, WATCHED
from starpullm.probe.recorded import describe_ending, record
from starpullm.probe.undeclared import Watched

from . import conftest
from .conftest import SOURCES, Compile


def probe(compiled: Compile, name: str) -> ProbeResult:
    return conftest.probe([str(compiled("undeclared")), name], runs=1)


def line_of(comment: str) -> int:
    lines = (SOURCES / "undeclared.c").read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"// {comment}"))


@pytest.mark.parametrize("name", ["right", "acquires", "acquires_in_callback", "partitions"])
def test_no_false_alarm(compiled: Compile, name: str) -> None:
    result = probe(compiled, name)
    assert result.outcome is Outcome.PASSED, result.lines()
    assert 0.8 * result.watched.of_bytes < result.watched.bytes <= result.watched.of_bytes
    assert result.watched.tasks == result.watched.of_tasks > 0
    assert not any(note.kind is Fault.NOT_CHECKED for note in result.notes), result.lines()


def test_tiles_of_a_matrix(compiled: Compile) -> None:
    """Their columns are shorter than a page, but no page has anything else than tiles."""
    result = probe(compiled, "tiles")
    assert result.outcome is Outcome.PASSED, result.lines()
    assert result.watched.bytes > 0.8 * result.watched.of_bytes


def test_a_run_that_takes_longer_because_it_is_watched(
    compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the reference schedule alone would end it, here with smaller constants, so that it takes seconds.

    Times are those of processors, which other programs don't change.
    """
    monkeypatch.setattr(program_runs, "_LIMIT_FACTOR", 3)
    monkeypatch.setattr(program_runs, "_LEAST_TIME_LIMIT", 0)
    limits = program_runs.TimeLimits(None)
    seconds = []
    for schedule in (REFERENCE, WATCHED):
        before = os.times()
        run = record([str(compiled("undeclared")), "tiles_of_pages"], schedule, tmp_path / schedule.folder, 4, 60)
        seconds.append(sum(os.times()[2:4]) - sum(before[2:4]))
        if schedule is REFERENCE:
            limits.learn(replace(run, ending=replace(run.ending, seconds=seconds[0])))
    assert 3 * seconds[0] < seconds[1] < limits.limit(WATCHED)
    assert (run.ending.status, Watched.of(list(run.flows.values())).tasks) == (0, 200)


@pytest.mark.parametrize(
    ("name", "kind", "words", "line"),
    [
        (
            "reads",
            Fault.UNDECLARED_READ,
            ("read_other (task 16)", "2: 2000 × 8 bytes, registered in ", "element 1000", "in read_other"),
            "line of the read",
        ),
        (
            "writes",
            Fault.UNDECLARED_WRITE,
            ("write_other (task 16)", "2: 2000 × 8 bytes, ", "element 1001", "in write_other"),
            "line of the write",
        ),
        (
            "reads_tile",
            Fault.UNDECLARED_READ,
            ("read_tile (task 4)", "3: 256 × 256 × 8 bytes, ", "element 11264 (0, 44)", "in read_tile"),
            "line of the tile",
        ),
        ("copies", Fault.UNDECLARED_READ, ("", "", "element ", "in copy_other"), "line of the copy"),
        (
            "writes_back",
            Fault.READ_WRITTEN,
            ("write_back (task 4)", "1: 2000 × 8 bytes, ", "element 999", "in write_back"),
            "line of the update",
        ),
        (
            "temporaries",
            Fault.UNDECLARED_READ,
            ("read_kept (task 1)", "0: 8 bytes, ", "element 0", "in read_kept"),
            "line of the kept address",
        ),
        (
            "has_a_handler",
            Fault.UNDECLARED_READ,
            ("", "", "element ", "in touch_own_page"),
            "line of the read behind the program's handler",
        ),
    ],
)
def test_the_access_is_named(
    compiled: Compile, name: str, kind: Fault, words: tuple[str, str, str, str], line: str
) -> None:
    result = probe(compiled, name)
    named = [finding for finding in result.findings if finding.schedule == "reference schedule, watched"]
    assert [finding.kind for finding in named] == [kind], result.lines()
    does = "writes" if "writes" in name else "reads"
    declares = "it declares to read only" if kind is Fault.READ_WRITTEN else "it doesn't declare"
    assert named[0].sentence == f"{does} data that {declares}"
    task, handle, element, function = words
    assert named[0].where.startswith(task)
    assert named[0].evidence["handle"].startswith(handle)
    (label,) = (label for label in named[0].evidence if label.startswith(element))
    assert named[0].evidence[label] == f"{function} (undeclared.c:{line_of(line)})"


def test_nothing_is_claimed_of_what_was_not_watched(compiled: Compile) -> None:
    """Four numbers in one page, with other data."""
    result = probe(compiled, "small_handles")
    assert result.watched.bytes == 0
    assert any(line.lstrip().startswith("not watched: no byte could be protected") for line in result.lines())


def test_a_crash_ends_the_watched_run(compiled: Compile, tmp_path: Path) -> None:
    run = record([str(compiled("undeclared")), "crashes"], WATCHED, tmp_path / "run", 2, 30)
    assert describe_ending(run) == "the program was ended by SIGSEGV"
    assert run.flows[-1].log.header["signal_task"] == 16 + 1
    assert "libstarpullm_probe" in run.flows[-1].log.stack


def test_a_system_call_that_fails_is_no_verdict(compiled: Compile) -> None:
    """The program ends with another status, only because its data are protected."""
    result = probe(compiled, "calls_the_system")
    assert not any(finding.kind is Fault.ENDING for finding in result.findings)
    (note,) = (note for note in result.notes if note.kind is Fault.NOT_CHECKED)
    assert "the program ended with exit status 4, perhaps by a system call" in note.sentence
