"""Progress reports: a process writes its phase and its last finished step to a file, which others read at any time.

The files are apart from any other connection so that a report can be read after a crash and during a hang.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starpullm.processes.rank_wrapper import rank_and_size_from_environment, write_whole

DIRECTORY_VARIABLE = "STARPULLM_PROGRESS_DIR"
"""Environment variable with the directory of the reports; without it they stay in memory."""

_PHASE_CHARACTERS = 48
# One record, written by one pwrite() to the same place each time: a checksum of the rest, which is the last finished
# step, the time in nanoseconds, and the phase, of up to 4 bytes a character.
_CHECKSUM = struct.Struct("=I")
_REPORT = struct.Struct(f"=qq{4 * _PHASE_CHARACTERS}s")
_NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Phase:
    """The last report of a rank: the phase that it began, and the last step that it had finished, from 1."""

    phase: str
    step: int | None
    seconds_ago: float

    def __str__(self) -> str:
        """Return the rank's step and phase in words, as messages have them at their end."""
        finished = f"last finished step {self.step}" if self.step else "before the first step"
        return f"{finished}, phase {self.phase}"


@dataclass(frozen=True, slots=True)
class RankFailure:
    """A rank's report of its own failure: its exit status, a sentence (may be empty), and CLOCK_MONOTONIC in ns."""

    status: int
    sentence: str
    time_ns: int


class OwnReport:
    """The last report of this process, and the number of its reports."""

    phase: str | None = None
    step: int | None = None
    reports = 0
    note: Callable[[], str] = str
    """What `where` says after the report."""


def report_phase(phase: str, step: int | None = None) -> None:
    """Report that this process begins a phase, of which 48 characters are kept; takes a few microseconds.

    ``step`` is the last one that it has finished, from 1; 0: none; None: the same as before. However the process ends,
    readers see either this report or the previous one, never a part of a report.
    """
    OwnReport.phase = phase[:_PHASE_CHARACTERS]
    OwnReport.step = OwnReport.step if step is None else step
    OwnReport.reports += 1
    file = _record_file()
    if file is not None:
        number = _NO_STEP if OwnReport.step is None else OwnReport.step
        report = _REPORT.pack(number, time.monotonic_ns(), OwnReport.phase.encode(errors="replace"))
        os.pwrite(file, _CHECKSUM.pack(zlib.crc32(report)) + report, 0)


def where() -> str:
    """Return this process's step and phase in words, as messages have them at their end, and its note."""
    phase = "no phase reported" if OwnReport.phase is None else str(Phase(OwnReport.phase, OwnReport.step, 0))
    return phase + OwnReport.note()


def report_failure(status: int, sentence: str) -> None:
    """Report that this process fails, and why. Later calls are ignored, because the first failure is the cause."""
    path = _path("failure")
    if path is not None and not path.exists():
        write_whole(path, json.dumps({"status": status, "sentence": sentence, "time_ns": time.monotonic_ns()}))


def read_phases(directory: Path) -> dict[int, Phase]:
    """Return the last report of each rank that has reported, by rank."""
    now = time.monotonic_ns()
    phases = {}
    for path in directory.glob("*.phase"):
        record = _read_record(path)
        if record is not None:
            step, then, phase = _REPORT.unpack(record)
            seconds_ago = max(now - then, 0) / 1e9  # a report that is written during this call is later than `now`
            finished = None if step == _NO_STEP else step
            phases[int(path.stem)] = Phase(phase.rstrip(b"\0").decode(), finished, seconds_ago)
    return phases


def read_failures(directory: Path) -> dict[int, RankFailure]:
    """Return the failures that ranks have reported, by rank."""
    return {int(path.stem): RankFailure(**json.loads(path.read_text())) for path in directory.glob("*.failure")}


def _path(suffix: str) -> Path | None:
    directory = os.environ.get(DIRECTORY_VARIABLE)
    return Path(directory, f"{rank_and_size_from_environment()[0]}.{suffix}") if directory else None


@cache
def _record_file() -> int | None:
    path = _path("phase")
    return None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _read_record(path: Path) -> bytes | None:
    """Return the record without its checksum, or None if there is none yet.

    The kernel completes a write within one page before a signal ends the writer. A reader can still see a part of a
    write that is going on; it notices that by the checksum, and reads again.
    """
    for _ in range(1000):
        record = path.read_bytes()
        checksum, report = record[: _CHECKSUM.size], record[_CHECKSUM.size :]
        if len(report) == _REPORT.size and checksum == _CHECKSUM.pack(zlib.crc32(report)):
            return report
        if not record:
            return None
    return None
