"""Tests of trace files: what is written is read back, and every kind of damage is refused with a sentence."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from starpullm.commands import main
from starpullm.commands.trace import FORMATS
from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.files.trace_file import (
    ABOUT,
    ACCESS,
    ACCESSES,
    TASK,
    TASKS,
    TraceFile,
    read_trace_file,
    write_trace_file,
)
from starpullm.processes.clocks import ClockReading, on_rank_0
from starpullm.traces.content import dependencies_of_run_tasks
from starpullm.traces.traced_run import load_run

RANK = {"host": "n1", "partition": "1x1", "clock_uncertainty_ns": 0}


def some_trace() -> TraceFile:
    """Three tasks: one on each of two ranks, and between them a transfer, which no worker has run."""
    tasks = np.zeros(3, TASK)
    tasks["step"] = [0, 0, 1]
    tasks["operation"] = [0, 1, 0]
    tasks["sub_batch"] = tasks["layer"] = -1
    tasks["rank"] = [0, 1, 1]
    tasks["worker"] = [0, -1, 0]
    tasks["submit_ns"] = [100, 110, 120]
    tasks["start_ns"] = [200, 0, 400]
    tasks["end_ns"] = [300, 0, 400]  # the last one took no time
    tasks["num_accesses"] = [1, 2, 1]
    tasks["first_access"] = [0, 1, 3]
    accesses = np.array([(0, 2), (1, 2), (0, 1), (1, 3)], ACCESS)
    about = {
        "program": "starpullm 1",
        "settings": {"scheduler": "lws", "model": {"num_layers": 1}},
        "clock": {"unix_ns": 5},
        "ranks": [RANK, {**RANK, "host": 'a "b" <c> & d', "clock_uncertainty_ns": 7}],
        "operations": ["adamw_update", "transfer"],
        "handles": [{"name": "grads/wte", "bytes": 8}, {"name": 'odd "<&\\', "bytes": 16}],
    }
    return TraceFile(about, tasks, accesses)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_trace_file(tmp_path / "run.trace", some_trace())
    return tmp_path / "run.trace"


def rewritten(path: Path, member: str, change: Callable[[bytes], bytes | None]) -> Path:
    """Replace one member of the archive; None leaves it out."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            changed = change(data) if name == member else data
            if changed is not None:
                archive.writestr(name, changed)
    return path


def with_about(path: Path, **changes: object) -> Path:
    return rewritten(path, ABOUT, lambda text: json.dumps({**json.loads(text), **changes}).encode())


def with_tasks(path: Path, **changes: Any) -> Path:
    tasks = some_trace().tasks
    for name, values in changes.items():
        tasks[name] = values
    write_trace_file(path, replace(some_trace(), tasks=tasks))
    return path


def test_round_trip(path: Path) -> None:
    expected, found = some_trace(), read_trace_file(path)
    assert found.tasks.tobytes() == expected.tasks.tobytes()
    assert found.accesses.tobytes() == expected.accesses.tobytes()
    assert found.about.items() >= expected.about.items()


def test_numpy_reads_the_arrays(path: Path) -> None:
    with np.load(path, allow_pickle=False) as archive:
        assert archive["tasks"]["start_ns"].tolist() == [200, 0, 400]
        assert json.loads(archive[ABOUT])["version"] == 1


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def unclosed(data: bytes) -> bytes:
    """Open a bracket in the header of an array that nothing closes; NumPy then parses it as Python 2 wrote it."""
    return data.replace(b"'shape': (", b"'shape':((", 1)


def shorter(data: bytes) -> bytes:
    return data[:-4]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "expected a starpullm trace, found an empty file"),
        (lambda path: path.write_bytes(b"%EventDef"), "expected a starpullm trace, found text"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-9]),
            "expected a starpullm trace, a zip archive with about.json, tasks.npy and accesses.npy, found",
        ),
        (lambda path: rewritten(path, TASKS, lambda data: None), "There is no item named 'tasks.npy'"),
        (lambda path: rewritten(path, ABOUT, shorter), "expected JSON, found"),
        (
            lambda path: rewritten(path, ABOUT, lambda data: b"[" * 100_000),
            "about.json, byte 0: expected JSON, found",
        ),
        (lambda path: rewritten(path, ABOUT, lambda data: b"[]"), "about.json: expected an object, found []"),
        (
            lambda path: with_about(path, format="starpullm report"),
            'key format: expected "starpullm trace", found "starpullm report"',
        ),
        (lambda path: with_about(path, version=2), "key version: expected 1, found 2"),
        (lambda path: with_about(path, ranks=[{}]), "about.json, key ranks[0].host: expected a value, found none"),
        (
            lambda path: with_about(path, ranks=[{**RANK, "clock_uncertainty_ns": 2**63}]),
            "key ranks[0].clock_uncertainty_ns: expected an integer from 0 to",
        ),
        (lambda path: with_about(path, operations=["a", "b\n"]), "expected names of printable characters"),
        (lambda path: with_about(path, operations=["a"]), "task 1 with operation 0 to 0, found 1"),
        (lambda path: with_about(path, handles=[]), "access 0 with handle 0 to -1, found 0"),
        (lambda path: rewritten(path, TASKS, shorter), "bytes of tasks.npy, found "),
        (lambda path: rewritten(path, TASKS, lambda data: b"x"), "expected a NumPy array in tasks.npy"),
        (lambda path: rewritten(path, TASKS, unclosed), "expected a NumPy array in tasks.npy"),
        (lambda path: rewritten(path, TASKS, lambda data: npy(np.zeros(3))), "found shape (3,) of float64"),
        (lambda path: rewritten(path, TASKS, lambda data: npy(np.zeros((1, 1), TASK))), "found shape (1, 1)"),
        (lambda path: rewritten(path, ACCESSES, lambda data: npy(np.zeros(4, ACCESS))), "with mode 1 to 4, found 0"),
        (lambda path: rewritten(path, ACCESSES, lambda data: npy(np.ones(5, ACCESS))), "4 accesses, found 5"),
        (lambda path: with_tasks(path, rank=[0, 1, 2]), "task 2 with rank 0 to 1, found 2"),
        (lambda path: with_tasks(path, num_accesses=[1, -1, 1]), "task 1 with number of accesses 0 to 4, found -1"),
        (lambda path: with_tasks(path, first_access=[0, 0, 3]), "expected first access 1 of task 1, found 0"),
        (lambda path: with_tasks(path, end_ns=[199, 0, 400]), "expected an end of task 0 after its start at 200 ns"),
    ],
)
def test_damage(damage: Callable[[Path], object], message: str, path: Path) -> None:
    damage(path)
    with pytest.raises(FormatError) as caught:
        read_trace_file(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(data=st.data())
def test_any_changed_byte_is_refused_or_harmless(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every member has a checksum, so nothing but the archive's own dates and flags can change unnoticed."""
    path = tmp_path_factory.mktemp("changed") / "run.trace"
    write_trace_file(path, some_trace())
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        found = read_trace_file(path)
    except FormatError:
        return
    assert found.tasks.tobytes() == some_trace().tasks.tobytes()
    assert found.about["handles"] == some_trace().about["handles"]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.trace: can't be read: No such file or directory"):
        load_run(tmp_path / "none.trace")


def test_dependencies_go_through_transfers(path: Path) -> None:
    run = load_run(path)
    assert [(edge.before, edge.after) for edge in dependencies_of_run_tasks(run)] == [(0, 2)]


def test_steps(path: Path) -> None:
    run = load_run(path)
    assert [task.id for task in run.steps(1, 9).trace] == [2]
    assert run.steps(1, 1).trace[0].accesses[0].handle.name == 'odd "<&\\'
    with pytest.raises(InvalidArgumentError, match="found no task of 2 to 3, expected some of 0 to 1"):
        run.steps(2, 3)


@pytest.mark.parametrize("name", FORMATS)
def test_a_target_that_cannot_be_written(name: str, path: Path, tmp_path: Path) -> None:
    """What was there stays as it was, and nothing else is left."""
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    done = CliRunner().invoke(main, ["trace", str(path), "--format", name, "--output", str(folder)])
    assert done.output.startswith(f"Error: {folder}: can't be written: ")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "run.trace"]
    assert [entry.name for entry in folder.iterdir()] == ["inside"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_trace_gives_the_same_text(name: str, path: Path) -> None:
    assert [*FORMATS[name](load_run(path))] == [*FORMATS[name](load_run(path))] != []


def test_times_on_the_clock_of_rank_0() -> None:
    """A clock that is 1000 ns ahead first and 1100 ns later, and loses or gains evenly between the readings."""
    first, last = ClockReading(10_000, 1000), ClockReading(20_000, 1100)
    times = np.array([10_000, 15_000, 20_000])
    assert on_rank_0(times, first, last).tolist() == [9000, 13_950, 18_900]
    assert on_rank_0(times, first, ClockReading(20_000, 1000)).tolist() == [9000, 14_000, 19_000]
