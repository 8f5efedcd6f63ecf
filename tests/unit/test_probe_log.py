"""The probe's log: damaged files are refused with one sentence, and a log that ends early is read up to there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from starpullm.errors import FileError, FormatError
from starpullm.files import probe_log
from starpullm.files.probe_log import read_probe_log

from .probe_logs import STREAMS, write_records


def write_log(folder: Path) -> Path:
    """Write a log of two tasks: one writes a handle, the other reads it."""
    counts = dict(zip(STREAMS, (3, 1, 2, 2, 4, 2, 0), strict=True))
    records = {name: np.zeros(count, probe_log.RECORDS[name]) for name, count in counts.items()}
    records["names"]["text"] = ["", "write", "read"]
    records["tasks"]["codelet"] = 1, 2
    records["tasks"]["num_accesses"] = 1
    records["tasks"]["first_access"] = 0, 1
    records["accesses"]["mode"] = probe_log.MODE_WRITE, probe_log.MODE_READ
    records["events"]["task"] = 0, 0, 1, 1
    records["events"]["kind"] = [probe_log.START, probe_log.END] * 2
    records["events"]["time_ns"] = 1, 2, 3, 4
    records["hashes"]["task"] = 0, 1
    records["hashes"]["time"] = probe_log.AFTER, probe_log.BEFORE
    records["hashes"]["hash"] = 7, 8
    return write_records(folder, records)


def test_a_log_is_read(tmp_path: Path) -> None:
    log = read_probe_log(write_log(tmp_path / "log"))
    assert log.names == ("", "write", "read")
    assert log.times(probe_log.END).tolist() == [2, 4]
    after, known = log.hashes_of_accesses(probe_log.AFTER)
    assert (after.tolist(), known.tolist()) == ([7, 0], [True, False])


def test_what_lies_behind_the_counts_is_ignored(tmp_path: Path) -> None:
    """A process that was killed leaves files that are longer than what it has counted."""
    folder = write_log(tmp_path / "log")
    for name in STREAMS:
        with (folder / name).open("ab") as file:
            file.write(b"\xff" * 4096)
    assert len(read_probe_log(folder).tasks) == 2


def shorten(folder: Path) -> None:
    path = folder / "tasks"
    path.write_bytes(path.read_bytes()[:-1])


def other_magic(folder: Path) -> None:
    path = folder / "header"
    path.write_bytes(b"X" + path.read_bytes()[1:])


def other_format(folder: Path) -> None:
    path = folder / "header"
    content = path.read_bytes()
    path.write_bytes(content[:8] + b"\x63\0\0\0" + content[12:])


def short_header(folder: Path) -> None:
    (folder / "header").write_bytes(b"STPPROBE")


def large_count(folder: Path) -> None:
    header = np.fromfile(folder / "header", probe_log.HEADER)
    header["counts"][0, STREAMS.index("events")] = 2**63
    header.tofile(folder / "header")


def odd_task(folder: Path) -> None:
    header = np.fromfile(folder / "header", probe_log.HEADER)
    header["signal_task"] = 99
    header.tofile(folder / "header")


def dangling(stream: str, member: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        records = np.fromfile(folder / stream, probe_log.RECORDS[stream])
        records[member][-1] = 99
        records.tofile(folder / stream)

    return damage


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (shorten, "tasks: found 1 records, expected the 2 that the header counts"),
        (other_magic, "not a log of the probe"),
        (other_format, "found format 99, expected 7"),
        (short_header, "found 8 bytes, expected at least"),
        (large_count, "events: found 4 records, expected the 9223372036854775808 that the header counts"),
        (odd_task, "header: found signal_task 99, expected less than 3"),
        (dangling("tasks", "codelet"), "tasks: found codelet 99, expected less than 3"),
        (dangling("tasks", "first_access"), "don't follow each other"),
        (dangling("tasks", "num_accesses"), "accesses: found 2 records, expected 100"),
        (dangling("accesses", "handle"), "accesses: found handle 99, expected less than 1"),
        (dangling("events", "task"), "events: found task 99, expected less than 2"),
        (dangling("hashes", "access"), "hashes: found an access that its task doesn't have"),
    ],
)
def test_damage_is_refused(tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    folder = write_log(tmp_path / "log")
    damage(folder)
    with pytest.raises(FormatError, match=sentence):
        read_probe_log(folder)


@pytest.mark.parametrize("offset", [1, 2**63])
def test_bytes_that_are_not_there(tmp_path: Path, offset: int) -> None:
    folder = write_log(tmp_path / "log")
    contents = np.zeros(1, probe_log.RECORDS["contents"])
    contents["hash"], contents["offset"], contents["bytes"] = 7, offset, 4
    contents.tofile(folder / "contents")
    header = np.fromfile(folder / "header", probe_log.HEADER)
    header["counts"][0, STREAMS.index("contents")] = 1
    header.tofile(folder / "header")
    (folder / "bytes").write_bytes(b"1234")
    with pytest.raises(FormatError, match=f"bytes: found 4 bytes, expected {offset + 4}"):
        read_probe_log(folder).bytes_of(7)


def test_a_missing_file(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "log")
    (folder / "events").unlink()
    with pytest.raises(FileError, match="events: can't be read"):
        read_probe_log(folder)
