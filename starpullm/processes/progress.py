"""Where each process of a job is: it reports its phase and its last finished step; others read that from outside.

The training loop reports; ``job.py`` reads, after a crash too; messages about a rank end with what it reported last.
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
"""Environment variable that names the directory of the reports; without it they stay in memory."""

# A record is one line of this size, written by one pwrite() to the same place each time.
_RECORD_SIZE = 256
_PHASE_CHARACTERS = 48  # of up to 4 bytes each: with its checksum and three numbers the line fits
_NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Phase:
    """What a rank reported last.

    Parameters
    ----------
    rank
        Which.
    phase
        What it was beginning to do.
    step
        The last step it had finished, from 1; None before the first.
    seconds_ago
        Since the report.
    pid
        Its process.
    """

    rank: int
    phase: str
    step: int | None
    seconds_ago: float
    pid: int

    def __str__(self) -> str:
        """Return the rank's step and phase in words, as they stand at the end of messages."""
        finished = "before the first step" if self.step is None else f"last finished step {self.step}"
        return f"{finished}, phase {self.phase}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that gave up: the exit status it wanted, why unless it had said that before, CLOCK_MONOTONIC in ns."""

    rank: int
    status: int
    sentence: str
    time_ns: int


def report_phase(phase: str, step: int | None = None) -> None:
    """Say that this process begins a phase; takes a few microseconds.

    Whatever ends the process, others read this report or the one before, never a part of one.

    Parameters
    ----------
    phase
        What it does now; the first 48 characters are kept.
    step
        The last step that it has finished, from 1; None: the same as before.

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
    """Return what this process reported last, if anything."""
    if _own.last is None:
        return None
    phase, step, then = _own.last
    return Phase(_rank(), phase, step, (time.monotonic_ns() - then) / 1e9, os.getpid())


def where() -> str:
    """Return this process's step and phase in words, as they stand at the end of messages."""
    return str(current_phase() or "no phase reported")


def report_failure(status: int, sentence: str) -> None:
    """Say that this process gives up, and why; only the first call counts: what ends it after that is not the reason.

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
    """Return what each rank reported last, by rank, for the ranks that have reported.

    Parameters
    ----------
    directory
        What the ranks' environment names; written on the machine that reads, whose clock it takes.

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
            # A report made while this was reading isn't in the future.
            phases[int(path.stem)] = Phase(int(path.stem), phase, finished, max(now - then, 0) / 1e9, pid)
    return dict(sorted(phases.items()))


def read_failures(directory: Path) -> dict[int, Failure]:
    """Return why ranks gave up, by rank, for those that said so.

    Raises
    ------
    FileError
        If the directory can't be read.
    """
    failures = (Failure(rank=int(path.stem), **json.loads(path.read_text())) for path in _files(directory, ".failure"))
    return {failure.rank: failure for failure in sorted(failures, key=lambda failure: failure.rank)}


# ---- How it works ----


class _Own:
    """What this process reported last: phase, last finished step, and when."""

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
    """Return process, step, time and phase, or None for a record that isn't there yet.

    A write within one page is done before a signal can end the writer. A reader may still come in the middle of it,
    which the checksum tells, and then reads again.
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
