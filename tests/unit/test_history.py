"""The history of bench: what is stored, what is compared, and files that are no history."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from starpullm.errors import FileError, FormatError
from starpullm.speed.history import History, append_to_history, read_history
from starpullm.speed.measure import Throughput

from .workloads import workload


def result(fraction: float, limits: tuple[float, float] = (100.0, 101.0), **changes: Any) -> Throughput:
    return Throughput(
        configuration=workload(**changes),
        processor="some processor, 2 cores",
        simd_level="ref",
        matmul="strict",
        tokens_per_ms=2.0,
        step_seconds=0.016,
        traced_step_seconds=0.017,
        matmul_flops=1_000_000,
        matmul_gflops=100 * fraction,
        matmul_limit_gflops=100.0,
        matmul_limit_range=list(limits),
        fma_peak_gflops=None,
        fraction_of_limit=fraction,
        kernel_fraction=0.5,
        runtime_overhead_fraction=0.25,
        waiting_fraction=0.25,
        idle_fractions=[0.5],
        seconds_by_operation={"matmul_forward": 0.01},
        tasks_per_step=93.0,
        peak_rss_bytes=60_000_000,
    )


def store(path: Path, fractions: list[float], machine: str = "here", **changes: Any) -> None:
    append_to_history(path, machine, [result(fraction, **changes) for fraction in fractions])


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(path) == []
    store(path, [0.5, 0.6])
    store(path, [0.7], machine="elsewhere", partition="2x1")
    entries = read_history(path)
    assert [entry.machine for entry in entries] == ["here", "here", "elsewhere"]
    assert [entry.result for entry in entries] == [result(0.5), result(0.6), result(0.7, partition="2x1")]
    assert all(entry.time.endswith("+00:00") for entry in entries)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (0.55, "as fast: median of 8 earlier runs 55.0% of the limit, which lies between 50.0% and 60.0%"),
        (0.49, "slower: median"),
        (0.61, "faster: median"),
    ],
)
def test_verdicts(tmp_path: Path, new: float, expected: str) -> None:
    path = tmp_path / "history.jsonl"
    store(path, [0.50, 0.51, 0.53, 0.54, 0.56, 0.57, 0.59, 0.60])
    assert History(path, "here").compare(result(new)).startswith(expected)


def test_only_undisturbed_runs_of_the_same_configuration_and_machine_count(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, "here")
    assert history.compare(result(0.5)) == "no earlier run of this configuration on this machine"
    store(path, [0.1] * 9, machine="elsewhere")
    store(path, [0.1] * 9, partition="2x1")
    store(path, [0.1] * 9, limits=(50.0, 100.0))
    assert History(path, "here").compare(result(0.5)) == "no earlier run of this configuration on this machine"
    store(path, [0.5])
    found = "median of 1 earlier run 50.0% of the limit; "
    assert History(path, "here").compare(result(0.5)) == f"{found}expected at least 6 runs for a verdict"
    disturbed = History(path, "here").compare(result(0.1, limits=(50.0, 100.0)))
    assert disturbed == f"{found}not compared, because the limit of this run is within noise"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "line 2: expected a result of starpullm bench --history: "),
        ("[]", "line 2: expected a result of starpullm bench --history: "),
        ('{"format": 2}', "line 2: format: found 2, expected 1"),
        ('{"format": 1, "time": "now", "machine": "here", "result": {}}', "line 2: expected a result"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "history.jsonl"
    store(path, [0.5])
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(FormatError, match=sentence):
        History(path, "here")


def test_a_truncated_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    store(path, [0.5])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FormatError, match="line 1"):
        read_history(path)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="Is a directory"):
        read_history(tmp_path)
    with pytest.raises(FileError, match="No such file or directory"):
        store(tmp_path / "none" / "history.jsonl", [0.5])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(FileError, match="No space left on device"):
        store(Path("/dev/full"), [0.5])


def test_lines_are_json_values(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    store(path, [0.5])
    values = json.loads(path.read_text())
    assert values["format"] == 1
    assert values["result"]["configuration"] == vars(replace(workload()))
