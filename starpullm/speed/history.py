"""The history of ``bench``: a file with a line of JSON for each result, and how a new one compares with earlier ones.

A line is ``{"format": 1, "time": …, "machine": …, "result": …}``: UTC in ISO 8601, the machine's fingerprint, and a
`Throughput`.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from starpullm.checks.result import json_value
from starpullm.errors import FileError, FormatError
from starpullm.speed.measure import Throughput
from starpullm.speed.noise import ENOUGH_VALUES, median_interval

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A result, the fingerprint of the machine that it was measured on, and when it was stored."""

    time: str
    machine: str
    result: Throughput


def read_history(path: Path) -> list[Entry]:
    """Return a file's entries, oldest first; none if there is no file.

    Raises
    ------
    FileError
        If it can't be read.
    FormatError
        If a line is not an entry, with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileError(f"{path}: can't be read: {error.strerror}", error.errno, str(path)) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: expected lines of JSON, as starpullm bench --history writes them") from error
    return [_entry(path, number, line) for number, line in enumerate(lines, 1)]


def _entry(path: Path, number: int, line: str) -> Entry:
    try:
        values = json.loads(line)
        if values["format"] != FORMAT:
            raise FormatError(f"{path}, line {number}: format: found {values['format']!r}, expected {FORMAT}")
        return Entry(values["time"], values["machine"], Throughput.from_json(values["result"]))
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"{path}, line {number}: expected a result of starpullm bench --history: {error}") from error


def append_to_history(path: Path, machine: str, results: Iterable[Throughput]) -> None:
    """Append results, measured on the machine with this fingerprint, to a file that need not be there; all or none.

    Raises
    ------
    FileError
        If they can't be written. The file then has the lines that it had.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = [
        json.dumps({"format": FORMAT, "time": now, "machine": machine, "result": json_value(result)})
        for result in results
    ]
    text = "".join(f"{line}\n" for line in lines).encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            length = os.fstat(descriptor).st_size
            try:
                if (written := os.write(descriptor, text)) < len(text):
                    raise FileError(f"{path}: {written} of {len(text)} bytes could be written")
                os.fsync(descriptor)
            except OSError:
                with suppress(OSError):  # a device can't be truncated
                    os.ftruncate(descriptor, length)
                raise
        finally:
            os.close(descriptor)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: can't be written: {error.strerror}", error.errno, str(path)) from error


class History:
    """A history file, as it was when it was opened, seen from one machine.

    Raises
    ------
    FileError, FormatError
        As `read_history`.
    """

    def __init__(self, path: Path, machine: str) -> None:
        self._path = path
        self._machine = machine
        self._entries = [entry for entry in read_history(path) if entry.machine == machine]

    def append(self, results: Iterable[Throughput]) -> None:
        """Append results of this machine, as `append_to_history`."""
        append_to_history(self._path, self._machine, results)

    def earlier(self, result: Throughput) -> list[Entry]:
        """Return the undisturbed earlier runs of a result's configuration, the oldest first."""
        return [
            entry
            for entry in self._entries
            if entry.result.configuration == result.configuration
            and entry.result.matmul == result.matmul
            and not entry.result.was_disturbed
        ]

    def compare(self, result: Throughput) -> str:
        """Return in words how a result's fraction of the limit compares with those of earlier runs.

        These are those of ``earlier``. The result is faster or slower if it is outside of the
        interval of their median (`median_interval`).
        """
        earlier = [entry.result.fraction_of_limit for entry in self.earlier(result)]
        if not earlier:
            return "no earlier run of this configuration on this machine"
        runs = f"{len(earlier)} earlier run{'s' if len(earlier) > 1 else ''}"
        found = f"median of {runs} {statistics.median(earlier):.1%} of the limit"
        if result.was_disturbed:
            return f"{found}; not compared, because the limit of this run is within noise"
        if len(earlier) < ENOUGH_VALUES:
            return f"{found}; expected at least {ENOUGH_VALUES} runs for a verdict"
        low, high = median_interval(earlier)
        new = result.fraction_of_limit
        verdict = "faster" if new > high else "slower" if new < low else "as fast"
        return f"{verdict}: {found}, which lies between {low:.1%} and {high:.1%}"
