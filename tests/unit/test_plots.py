"""Plots of benchmarks: the numbers that they show, and what can't be drawn."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from starpullm.checks.result import json_value
from starpullm.errors import FileError, FormatError, InvalidArgumentError
from starpullm.runtime import Partition
from starpullm.speed import plots
from starpullm.speed.measure import Throughput

from .workloads import workload

FLOPS_PER_TOKEN = 750_000_000
LIMIT_OF_CORE = 100.0  # 10^9 per second


def speed_of(partition: str, ranks: int, batch_size: int) -> float:
    """A number that differs for all arguments."""
    workers, threads = Partition.parse(partition)
    return 0.05 * ranks * workers * threads * (1 - 0.01 * threads) * (1 - 1 / (2 + batch_size)) * (1 - 0.001 * ranks)


def result(partition: str, batch_size: int, ranks: int = 1, sub_batches: int = 1, **changes: Any) -> Throughput:
    configuration = workload(
        model="gpt2-124m",
        batch_size=batch_size,
        seq_len=64,
        partition=partition,
        sub_batches=sub_batches,
        ranks=ranks,
    )
    cores = ranks * Partition.parse(partition).workers * Partition.parse(partition).threads
    made = Throughput(
        configuration=configuration,
        processor="some processor, 8 cores",
        simd_level="avx512",
        matmul="strict",
        tokens_per_ms=speed_of(partition, ranks, batch_size),
        step_seconds=1.0,
        traced_step_seconds=1.0,
        matmul_flops=FLOPS_PER_TOKEN * batch_size * 64,
        matmul_gflops=1.0,
        matmul_limit_gflops=LIMIT_OF_CORE * cores,
        matmul_limit_range=[LIMIT_OF_CORE * cores, LIMIT_OF_CORE * cores],
        fma_peak_gflops=None,
        fraction_of_limit=0.5,
        kernel_fraction=0.9,
        runtime_overhead_fraction=0.05,
        waiting_fraction=0.05,
        idle_fractions=[0.1],
        seconds_by_operation={"matmul_forward": 0.9},
        tasks_per_step=100.0,
        peak_rss_bytes=1000,
    )
    return replace(made, **changes)


RESULTS = [
    result(partition, batch_size)
    for batch_size in (8, 16, 32, 64)
    for partition in ("1x1", "2x1", "1x2", "4x1", "2x2", "1x4", "8x1", "4x2")
] + [result("1x1", 8, ranks=2), result("1x1", 16, ranks=4, sub_batches=2)]


def lines_of(axis: Any) -> dict[str, Any]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()}


def limit(cores: int) -> float:
    return LIMIT_OF_CORE * cores * 1e9 / FLOPS_PER_TOKEN / 1e3


def test_strong_scaling() -> None:
    figure = plots.draw("strong", RESULTS)
    assert [axis.get_title() for axis in figure.axes] == ["B = 8", "B = 16", "B = 32", "B = 64"]
    lines = lines_of(figure.axes[0])
    cores = [1, 2, 4, 8]
    expected = {
        "workers of 1 thread": ["1x1", "2x1", "4x1", "8x1"],
        "workers of 2 threads": ["1x2", "2x2", "4x2"],
        "one worker": ["1x1", "1x2", "1x4"],
    }
    for label, partitions in expected.items():
        x, y = lines[label]
        assert x == [Partition.parse(of).workers * Partition.parse(of).threads for of in partitions]
        assert y == [speed_of(of, 1, 8) for of in partitions]
    assert lines["ranks of 1x1"] == ([1, 2], [speed_of("1x1", 1, 8), speed_of("1x1", 2, 8)])
    assert lines["ideal"] == (cores, [pytest.approx(speed_of("1x1", 1, 8) * count) for count in cores])
    assert lines["limit of the matmuls"] == (cores, [pytest.approx(limit(count)) for count in cores])
    assert lines.keys() == expected.keys() | {"ranks of 1x1", "ideal", "limit of the matmuls"}


def test_weak_scaling() -> None:
    figure = plots.draw("weak", RESULTS)
    assert [axis.get_title() for axis in figure.axes] == [f"B = {each} per core" for each in (2, 4, 8, 16, 32)]
    of_eight = lines_of(figure.axes[2])
    batches = {"1x1": 8, "2x1": 16, "4x1": 32, "8x1": 64}
    assert of_eight["workers of 1 thread"] == ([1, 2, 4, 8], [speed_of(of, 1, size) for of, size in batches.items()])
    assert of_eight["ideal"][1] == [pytest.approx(speed_of("1x1", 1, 8) * count) for count in (1, 2, 4, 8)]


def test_partitions_by_batch_size() -> None:
    figure = plots.draw("partitions", RESULTS)
    assert [axis.get_title() for axis in figure.axes] == ["1 core", "2 cores", "4 cores", "8 cores"]
    axis = figure.axes[2]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["8", "16", "32", "64"]
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axis.containers}
    for partition in ("4x1", "2x2", "1x4"):
        assert heights[partition] == [speed_of(partition, 1, size) for size in (8, 16, 32, 64)]
    assert heights["4 ranks of 1x1"] == [speed_of("1x1", 4, 16)]
    # No bar stands over another.
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bars in axis.containers for bar in bars)
    assert all(right <= left + 1e-9 for (_, right), (left, _) in pairwise(edges))
    assert lines_of(axis)["limit of the matmuls"][1] == [pytest.approx(limit(4))] * 2


def test_words() -> None:
    """Machine, model and axes are named; one legend has each label of all panels once, and covers no panel."""
    figure = plots.draw("partitions", RESULTS)
    (title,) = figure.texts
    assert title.get_text() == ("Partitions by batch size: gpt2-124m, T = 64\nsome processor, 8 cores, avx512, ordered")
    assert figure.axes[0].get_ylabel() == "tokens per millisecond"
    assert figure.axes[-1].get_xlabel() == "batch size B"
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == len(set(labels))
    assert {"1x1", "4x2", "2 ranks of 1x1", "limit of the matmuls"} <= set(labels)
    figure.draw_without_rendering()
    assert all(legend.get_window_extent().y1 <= axis.get_window_extent().y0 for axis in figure.axes)


def test_the_best_number_of_sub_batches() -> None:
    results = [result("1x1", 8), result("2x1", 8, tokens_per_ms=0.2), result("2x1", 8, 1, 2, tokens_per_ms=0.3)]
    line = lines_of(plots.draw("strong", results).axes[0])["workers of 1 thread"]
    assert line == ([1, 2], [speed_of("1x1", 1, 8), 0.3])


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"picture.{suffix}"
    plots.save(plots.draw("strong", RESULTS), path)
    assert path.read_bytes().startswith(start)


def test_where_no_file_can_be(tmp_path: Path) -> None:
    figure = plots.draw("strong", RESULTS)
    with pytest.raises(InvalidArgumentError, match=r"picture\.xyz: expected a name that ends in one of .*png"):
        plots.save(figure, tmp_path / "picture.xyz")
    with pytest.raises(FileError, match=r"picture\.png: can't be written: No such file or directory"):
        plots.save(figure, tmp_path / "none" / "picture.png")


@pytest.mark.parametrize(
    ("kind", "results", "sentence"),
    [
        ("strong", [], "results: found none"),
        ("strong", [result("1x1", 8), result("2x1", 16)], "strong: expected several numbers of cores with the same"),
        ("weak", [result("1x1", 8), result("2x1", 8)], "weak: expected several numbers of cores with the same batch"),
        ("strong", [result("1x1", 8), result("2x1", 8, matmul="blas (x)")], r"several kinds of matmul \(blas \(x\), s"),
        ("weak", [result("1x1", 8), result("2x1", 16, processor="other")], "several kinds of processor"),
    ],
)
def test_what_cannot_be_drawn(kind: str, results: list[Throughput], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        plots.draw(kind, results)


def with_entry(**changes: object) -> str:
    """A file with one result that is changed."""
    return json.dumps([{**json_value(RESULTS[0]), **changes}])


def test_reading(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(json_value(RESULTS[:3])))
    second.write_text(json.dumps(json_value(RESULTS[3:])))
    assert plots.read_results([first, second]) == RESULTS


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "expected JSON, found"),
        ("[" * 100_000, "expected JSON of at most 64 nested lists and objects"),
        (with_entry(tokens_per_ms="fast"), "tokens_per_ms: found 'fast', expected a number"),
        (with_entry(configuration={**asdict(RESULTS[0].configuration), "ranks": 0}), "ranks: found 0"),
        (with_entry(configuration={**asdict(RESULTS[0].configuration), "ranks": "2"}), "not supported between"),
        ('[{"contenders": []}]', r"expected results of starpullm bench --json \(without --against\)"),
        ("[1]", "expected results of starpullm bench --json"),
        ("3", "expected results of starpullm bench --json"),
    ],
)
def test_other_files(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(FormatError, match=sentence):
        plots.read_results([path])
    with pytest.raises(FileError, match="can't be read: No such file"):
        plots.read_results([tmp_path / "none.json"])
