"""Tests of progress reports: what readers see at any moment, and after the process was killed.

Child processes make the reports, because a process has only one rank and one directory of reports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from starpullm.processes import progress
from starpullm.processes.progress import DIRECTORY_VARIABLE, read_failures, read_phases


def report(code: str, directory: Path | None, **environment: str) -> str:
    """Run code in a process that reports into this directory, and return what it has printed."""
    variables = {**os.environ, **environment}
    variables.pop(DIRECTORY_VARIABLE, None)
    if directory is not None:
        variables[DIRECTORY_VARIABLE] = str(directory)
    command = [sys.executable, "-c", f"from starpullm.processes.progress import *\n{code}"]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=60).stdout


def test_phases_of_two_ranks(tmp_path: Path) -> None:
    before = time.monotonic()
    code = "report_phase('start'); report_phase('forward', 3); report_phase('backward')"
    report(code, tmp_path, PMI_RANK="10", PMI_SIZE="11")
    report("report_phase('start')", tmp_path, OMPI_COMM_WORLD_RANK="2", OMPI_COMM_WORLD_SIZE="11")
    phases = read_phases(tmp_path)
    assert phases.keys() == {2, 10}
    assert (phases[10].phase, phases[10].step) == ("backward", 3)
    assert (phases[2].phase, phases[2].step) == ("start", None)
    assert 0 <= phases[2].seconds_ago <= phases[10].seconds_ago <= time.monotonic() - before
    assert str(phases[10]) == "last finished step 3, phase backward"
    assert str(phases[2]) == "before the first step, phase start"


def test_without_a_directory_it_is_remembered() -> None:
    printed = report("print(where()); report_phase('forward', 2); print(where())", None)
    assert printed.splitlines() == ["no phase reported", "last finished step 2, phase forward"]


@pytest.mark.parametrize("phase", ["", " spaces ", "two\nlines", "é😀" * 100, "x" * 1000, "\0", "\udc80"])
def test_any_text(phase: str, tmp_path: Path) -> None:
    """Any phase is kept up to its 48th character; what can't be encoded is replaced."""
    report(f"report_phase({phase!a}, 2**62)", tmp_path)
    found = read_phases(tmp_path)[0]
    assert found.phase == phase[:48].rstrip("\0").encode(errors="replace").decode()
    assert found.step == 2**62


def test_failure(tmp_path: Path) -> None:
    report("report_failure(3, 'a “bad”\\nnumber')", tmp_path, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    report("report_failure(4, '')", tmp_path, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    report("report_failure(3, 'nobody hears it')", None)
    failure = read_failures(tmp_path)[1]
    assert (failure.status, failure.sentence) == (3, "a “bad”\nnumber")
    assert failure.time_ns <= time.monotonic_ns()
    assert [path.name for path in tmp_path.iterdir()] == ["1.failure"]


# Two different records: a mixture of them would have another length or another checksum.
REPORT_FOR_EVER = """
import itertools
for step in itertools.count(1):
    report_phase("a", step)
    report_phase("long " * 9, 10**15 + step)
"""


def test_whole_records_at_any_moment_and_after_a_kill(tmp_path: Path) -> None:
    """A reader that never pauses sees complete records only, also if the writer is killed at a random moment."""
    for round_ in range(4):
        directory = tmp_path / str(round_)
        directory.mkdir()
        command = [sys.executable, "-c", f"from starpullm.processes.progress import *\n{REPORT_FOR_EVER}"]
        seen = 0
        with subprocess.Popen(command, env={**os.environ, DIRECTORY_VARIABLE: str(directory)}) as process:
            while not (started := read_phases(directory)):
                assert process.poll() is None
            end = time.monotonic() + 0.05 + 0.0137 * round_
            while time.monotonic() < end:
                phases = read_phases(directory)
                assert check_record(phases) >= check_record(started)
                seen += 1
            process.kill()
        assert seen > 10
        assert check_record(read_phases(directory)) > 0


def check_record(phases: dict[int, progress.Phase]) -> int:
    """Fail unless phase and step belong together; return the step."""
    phase = phases[0]
    assert phase.step is not None
    assert phase.phase == ("a" if phase.step < 10**15 else "long " * 9)
    return phase.step % 10**15


def test_a_torn_record_is_no_record(tmp_path: Path) -> None:
    report("report_phase('forward', 3)", tmp_path)
    file = tmp_path / "0.phase"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"forward", b"fxrward"))
    assert read_phases(tmp_path) == {}
    file.write_bytes(content[:100])
    assert read_phases(tmp_path) == {}
    file.write_bytes(b"")
    assert read_phases(tmp_path) == {}
    file.write_bytes(content)
    assert read_phases(tmp_path)[0].step == 3


def test_a_report_is_cheap(tmp_path: Path) -> None:
    """A few microseconds; the limit leaves room for slow machines."""
    code = (
        "import time\n"
        "def cost():\n"
        "    start = time.thread_time()\n"
        "    for step in range(1000): report_phase('forward', step)\n"
        "    return (time.thread_time() - start) / 1000\n"
        "print(min(cost() for _ in range(20)))"
    )
    assert float(report(code, tmp_path)) < 50e-6
