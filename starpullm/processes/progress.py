"""Progress reports: a process writes its phase and its last finished step to a file, which others read at any time.

The files are apart from any other connection so that a report can be read after a crash and during a hang.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starpullm.errors import FileError
from starpullm.processes.keeper import rank_and_size_from_environment

__all__ = [
    "DIRECTORY_VARIABLE",
    "Failure",
    "Phase",
    "current_phase",
    "read_failures",
    "read_phases",
    "report_failure",
    "report_phase",
    "where",
]

DIRECTORY_VARIABLE = "STARPULLM_PROGRESS_DIR"
"""Environment variable with the directory of the reports; without it they stay in memory."""

# A record is one line of this size, written by one pwrite() to the same place each time.
_RECORD_SIZE = 256
_PHASE_CHARACTERS = 48  # of up to 4 bytes each, which leaves room for a checksum and three numbers
_NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Phase:
    """The last report of a rank.

    Parameters
    ----------
    rank
        Its number.
    phase
        The phase that it began.
    step
        The last step that it had finished, from 1; None before the first.
    seconds_ago
        Time since the report.
    pid
        The number of its process.
    """

    rank: int
    phase: str
    step: int | None
    seconds_ago: float
    pid: int

    def __str__(self) -> str:
        """Return the rank's step and phase in words, as messages have them at their end."""
        finished = "before the first step" if self.step is None else f"last finished step {self.step}"
        return f"{finished}, phase {self.phase}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank's report of its own failure: its exit status, a sentence (may be empty), and CLOCK_MONOTONIC in ns."""

    rank: int
    status: int
    sentence: str
    time_ns: int


def report_phase(phase: str, step: int | None = None) -> None:
    """Report that this process begins a phase; takes a few microseconds.

    However the process ends, readers see either this report or the previous one, never a part of a report.

    Parameters
    ----------
    phase
        The phase; its first 48 characters are kept.
    step
        The last step that this process has finished, from 1; None: the same as before.

    Raises
    ------
    FileError
        If the directory that the environment names can't be written to.
    """
    if step is None and _own.last is not None:
        step = _own.last[1]
    _own.last = (phase[:_PHASE_CHARACTERS], step, time.monotonic_ns())
    file = _record_file()
    if file is not None:
        os.pwrite(file, _encode(os.getpid(), *_own.last), 0)


def current_phase() -> Phase | None:
    """Return the last report of this process, if there is one."""
    if _own.last is None:
        return None
    phase, step, then = _own.last
    return Phase(_rank(), phase, step, (time.monotonic_ns() - then) / 1e9, os.getpid())


def where() -> str:
    """Return this process's step and phase in words, as messages have them at their end."""
    return str(current_phase() or "no phase reported")


def report_failure(status: int, sentence: str) -> None:
    """Report that this process fails, and why. Later calls are ignored, because the first failure is the cause.

    Raises
    ------
    FileError
        If the directory that the environment names can't be written to.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return
    path = Path(directory, f"{_rank()}.failure")
    if path.exists():
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"status": status, "sentence": sentence, "time_ns": time.monotonic_ns()}))
        unfinished.rename(path)
    except OSError as error:
        raise _refused(path, error) from error


def read_phases(directory: Path) -> dict[int, Phase]:
    """Return the last report of each rank that has reported, by rank.

    Parameters
    ----------
    directory
        The directory of the reports; times are only right on the machine that the ranks run on.

    Raises
    ------
    FileError
        If the directory can't be read.
    """
    now = time.monotonic_ns()
    phases = {}
    for path in _files(directory, ".phase"):
        record = _read_record(path)
        if record is not None:
            pid, step, then, phase = record
            finished = None if step == _NO_STEP else step
            # A report that is written during this call is later than `now`.
            phases[int(path.stem)] = Phase(int(path.stem), phase, finished, max(now - then, 0) / 1e9, pid)
    return dict(sorted(phases.items()))


def read_failures(directory: Path) -> dict[int, Failure]:
    """Return the failures that ranks have reported, by rank.

    Raises
    ------
    FileError
        If the directory can't be read.
    """
    failures = (Failure(rank=int(path.stem), **json.loads(path.read_text())) for path in _files(directory, ".failure"))
    return {failure.rank: failure for failure in sorted(failures, key=lambda failure: failure.rank)}


# ---- How it works ----


class _Own:
    """The last report of this process: phase, last finished step, time in nanoseconds."""

    last: tuple[str, int | None, int] | None = None


_own = _Own()


@cache
def _rank() -> int:
    rank, _ = rank_and_size_from_environment()
    return rank


@cache
def _record_file() -> int | None:
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return None
    path = Path(directory, f"{_rank()}.phase")
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _refused(path, error) from error


def _encode(pid: int, phase: str, step: int | None, then: int) -> bytes:
    text = f"{pid} {_NO_STEP if step is None else step} {then} {phase}"
    body = text.encode(errors="replace").ljust(_RECORD_SIZE - len("01234567 \n"), b"\0")
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _read_record(path: Path) -> tuple[int, int, int, str] | None:
    """Return process, step, time and phase, or None if there is no record yet.

    The kernel completes a write within one page before a signal ends the writer. A reader can still see a part of a
    write that is going on; it notices that by the checksum, and reads again.
    """
    for _ in range(1000):
        record = path.read_bytes()
        checksum, _, body = record[:-1].partition(b" ")
        if len(record) == _RECORD_SIZE and checksum == b"%08x" % zlib.crc32(body):
            pid, step, then, phase = body.rstrip(b"\0").decode().split(" ", 3)
            return int(pid), int(step), int(then), phase
        if not record:
            return None
    return None


def _files(directory: Path, suffix: str) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.suffix == suffix]
    except OSError as error:
        raise FileError(f"{directory}: can't be read: {error.strerror}", error.errno, str(directory)) from error


def _refused(path: Path, error: OSError) -> FileError:
    return FileError(
        f"{path}: can't be written, expected a directory in {DIRECTORY_VARIABLE}: {error.strerror}",
        error.errno,
        str(path),
    )
