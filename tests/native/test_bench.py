"""``starpullm bench``: its results are complete and plausible, and impossible workloads are refused.

Every command is a child process. No test expects a certain speed of the machine.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from starpullm.golden.records import shipped_record
from starpullm.machine import peak_gflops
from starpullm.speed.limit import matmul_flops

from .children import TWO_CORES, run_cli, run_function

pytestmark = pytest.mark.usefixtures("own_lock")

TINY = shipped_record("tiny")
TIMEOUT = 100
OPERATIONS = {"matmul_forward", "matmul_backward_input", "matmul_backward_weight", "attention_forward", "adamw_update"}


def bench(*args: object) -> list[dict[str, Any]]:
    options = ("bench", "--iterations", 2, "--warm-up", 1, "--json", *args)
    run = run_cli(*options, timeout=TIMEOUT, environment=TWO_CORES).check()
    assert run.stderr == "", run
    results: list[dict[str, Any]] = json.loads(run.stdout)
    return results


def assert_plausible(result: dict[str, Any], batch_size: int, seq_len: int, workers: int) -> None:
    """Check that every quantity is in its possible range and agrees with the others."""
    configuration = result["configuration"]
    assert (configuration["batch_size"], configuration["seq_len"]) == (batch_size, seq_len)
    assert (configuration["iterations"], configuration["warm_up"]) == (2, 1)
    flops = matmul_flops(TINY.model, batch_size, seq_len)
    assert result["matmul_flops"] == flops
    assert result["step_seconds"] > 0
    assert result["traced_step_seconds"] > 0
    assert result["tokens_per_ms"] == pytest.approx(batch_size * seq_len / result["step_seconds"] / 1e3)
    assert result["matmul_gflops"] == pytest.approx(flops / result["step_seconds"] / 1e9)
    low, high = result["matmul_limit_range"]
    assert 0 < low <= result["matmul_limit_gflops"] <= high
    assert result["fma_peak_gflops"] is None or result["fma_peak_gflops"] > 0
    assert result["fraction_of_limit"] == pytest.approx(result["matmul_gflops"] / result["matmul_limit_gflops"])
    assert 0 < result["fraction_of_limit"] < 1
    fractions = [result[name] for name in ("kernel_fraction", "runtime_overhead_fraction", "waiting_fraction")]
    assert all(0 <= fraction <= 1 for fraction in fractions)
    assert fractions[0] > 0
    assert math.fsum(fractions) == pytest.approx(1)
    assert len(result["idle_fractions"]) == workers
    assert all(0 <= idle <= 1 for idle in result["idle_fractions"])
    assert sum(result["idle_fractions"]) / workers == pytest.approx(1 - fractions[0])
    seconds = result["seconds_by_operation"]
    assert seconds.keys() >= OPERATIONS
    assert "transfer" not in seconds
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True)
    assert sum(seconds.values()) == pytest.approx(fractions[0] * workers * result["traced_step_seconds"])
    # Parameters, gradients, m and v, and Python with NumPy.
    assert 10 * 2**20 < result["peak_rss_bytes"] < 2**32


def test_every_combination_is_measured(tiny_checkpoint: Path) -> None:
    """Partitions with as many sub-batches as workers, of a model of the user's own."""
    sizes = ("--batch-size", 4, "--seq-len", 6)
    partitions = ("--partition", "1x1", "--partition", "2x1")
    results = bench("--checkpoint", tiny_checkpoint, *sizes, *partitions, "--reduction", "tree")
    configurations = [
        (configuration["partition"], configuration["sub_batches"], configuration["reduction"])
        for configuration in (result["configuration"] for result in results)
    ]
    assert configurations == [("1x1", 1, "tree"), ("2x1", 2, "tree")]
    for result in results:
        assert_plausible(result, 4, 6, result["configuration"]["sub_batches"])
        if result["configuration"]["partition"] == "1x1":  # one worker can only wait for StarPU
            assert result["waiting_fraction"] == pytest.approx(0, abs=1e-9)
            assert result["waits"] == {}
        else:
            assert sum(result["waits"].values()) == pytest.approx(1)
    one, two = (result["tasks_per_step"] for result in results)
    assert one < two < 2 * one


def test_two_ranks() -> None:
    """--batch-size is that of each rank; the result has that of all ranks."""
    (result,) = bench("--model", "tiny", "--ranks", 2, "--batch-size", TINY.batch_size // 2)
    assert result["configuration"]["ranks"] == 2
    assert_plausible(result, TINY.batch_size, TINY.seq_len, 2)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "expected either --model or --checkpoint"),
        (
            ("--model", "tiny", "--batch-size", 2, "--total-batch-size", 2),
            "expected either --batch-size or --total-batch-size",
        ),
        (("--model", "tiny", "--partition", "3x1", "--sub-batches", 1), "partition 3x1: needs 3 cores, found 2"),
        (("--model", "tiny", "--sub-batches", 4), "batch_size: found 2, expected a multiple of 4"),
        (("--model", "tiny", "--seq-len", 99, "--ranks", 2), "seq_len: found 99, expected 1 to 16"),
        (("--model", "tiny", "--scheduler", "none"), 'scheduler: found "none", expected one that StarPU'),
    ],
)
def test_what_cannot_be_measured(args: tuple[object, ...], sentence: str) -> None:
    run = run_cli("bench", *args, timeout=TIMEOUT, environment=TWO_CORES).check(2)
    assert sentence in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


def test_a_child_that_is_not_done_in_time() -> None:
    run = run_cli("bench", "--model", "tiny", "--time-limit", 0.1, timeout=TIMEOUT, environment=TWO_CORES).check(4)
    assert run.stderr.startswith(
        "Error: tiny, 1x1, S = 1, ordered: the start had not ended after 0.1 s, so its process was "
    )


# ---- What the processor can do ----


def peaks() -> list[float]:
    return [peak_gflops(threads, fused=fused, seconds=0.01) for threads in (1, 2) for fused in (False, True)]


def test_peaks() -> None:
    strict, _, strict_of_two, _ = run_function(peaks)
    assert 0 < strict < math.inf
    assert 0 < strict_of_two < math.inf
    # The reference level has no fused loop.
    strict, fused, strict_of_two, fused_of_two = run_function(peaks, environment={"STARPULLM_SIMD": "ref"})
    assert strict > 0
    assert strict_of_two > 0
    assert fused == fused_of_two == 0
