"""Measurements of throughput: the number of operations, where the time goes, and the results as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from starpullm.checks.result import json_value
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import shipped_record
from starpullm.speed.attribution import attribute_time
from starpullm.speed.limit import matmul_flops
from starpullm.speed.measure import Throughput
from starpullm.trace import AccessMode, Trace

from .traces import trace_of
from .workloads import throughput, workload

WORKLOAD = workload(batch_size=4, partition="2x1", sub_batches=2, ranks=2, iterations=10)
OPERATIONS = ("matmul_forward", "adamw_update", "transfer")
TRANSFER = OPERATIONS.index("transfer")


# ---- Operations ----


def test_flops_as_a_plain_count() -> None:
    """Counted product by product, over pairs of positions in attention."""
    model = shipped_record("tiny").model
    B, T, C, L, Vp = 2, 8, model.channels, model.num_layers, model.padded_vocab_size
    layers = [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)] * L + [(C, Vp)]
    linear = sum(2 * B * T * inputs * outputs * 3 for inputs, outputs in layers)
    pairs = sum(1 for t in range(T) for t2 in range(T) if t2 <= t)
    assert matmul_flops(model, B, T) == linear + L * B * pairs * C * 2 * (2 + 4)


# ---- Workloads and results ----


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 6}, r"batch_size: found 6, expected a multiple of 4 \(ranks 2, sub-batches of each 2\)"),
        (
            {"batch_size": 6, "stages": 2, "ranks": 4},
            r"batch_size: found 6, expected a multiple of 4 \(pipelines 2, sub-batches of each 2\)",
        ),
        ({"batch_size": 0}, "batch_size: found 0, expected at least 1"),
        ({"sub_batches": 0}, "sub_batches: found 0, expected at least 1"),
        ({"ranks": 0}, "ranks: found 0, expected at least 1"),
        ({"iterations": 0}, "iterations: found 0, expected at least 1"),
        ({"warm_up": -1}, "warm_up: found -1, expected at least 0"),
        ({"partition": "2"}, 'partition: found "2", expected WxT'),
    ],
)
def test_impossible_workloads(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        replace(WORKLOAD, **changes)


def test_json() -> None:
    """A result as JSON has the keys that programs rely on."""
    result = throughput(WORKLOAD)
    values = json.loads(json.dumps(json_value(result), allow_nan=False))
    required = (
        "configuration tokens_per_ms matmul_limit_gflops fraction_of_limit runtime_overhead_fraction peak_rss_bytes"
    )
    assert set(required.split()) <= values.keys()
    assert values["configuration"] == asdict(WORKLOAD)
    assert Throughput(**{**values, "configuration": WORKLOAD}) == result


# ---- Where the time goes ----


def trace_of_tasks(*tasks: tuple[int, int, int, int, str, str], operations: tuple[int, ...] | None = None) -> Trace:
    """Tasks as (rank, worker, start, end, handles read, handles written); a handle is a letter."""
    ranks, workers, starts, ends, reads, writes = zip(*tasks, strict=True)
    flow = [
        [*((handle, AccessMode.READ) for handle in read), *((handle, AccessMode.WRITE) for handle in write)]
        for read, write in zip(reads, writes, strict=True)
    ]
    columns = {"rank": ranks, "worker": workers, "start_ns": starts, "end_ns": ends, "operation": operations or 0}
    return trace_of(flow, dict.fromkeys("abc", 4), OPERATIONS, **columns)


FRACTIONS = ("kernel_fraction", "runtime_overhead_fraction", "waiting_fraction")


@pytest.mark.parametrize(
    ("tasks", "sizes", "fractions", "idle"),
    [
        # A chain on one worker never waits for the graph: the second task could run from 40 on and starts at 50; before
        # 10 and after 90 there is the runtime alone.
        ([(0, 0, 10, 40, "", "a"), (0, 0, 50, 90, "a", "b")], (1, 1), (0.7, 0.3, 0.0), [0.3]),
        # It leaves a second worker waiting: of 200 units, 70 are kernels, and while none runs there is one task for one
        # of the two idle workers: 30.
        ([(0, 0, 10, 40, "", "a"), (0, 1, 50, 90, "a", "b")], (2, 1), (0.35, 0.15, 0.5), [0.7, 0.6]),
        # Independent tasks that run after each other are the runtime's cost: the second could have run from the start
        # on the other worker; from 50 on nothing is left for that.
        ([(0, 0, 0, 50, "", "a"), (0, 0, 50, 100, "", "b")], (2, 1), (0.5, 0.25, 0.25), [0.0, 1.0]),
        # A task is only for the workers of its rank: rank 1's task needs rank 0's data, which are there at 60; nothing
        # but waiting before that, and the way after.
        ([(0, 0, 0, 60, "", "a"), (1, 0, 70, 100, "a", "b")], (1, 2), (0.45, 0.05, 0.5), [0.4, 0.7]),
    ],
)
def test_where_the_time_goes(
    tasks: list[Any], sizes: tuple[int, int], fractions: tuple[float, float, float], idle: list[float]
) -> None:
    workers, ranks = sizes
    time = attribute_time(trace_of_tasks(*tasks), 0, 100, workers=workers, ranks=ranks)
    assert tuple(time[name] for name in FRACTIONS) == pytest.approx(fractions)
    assert time["idle_fractions"] == pytest.approx(idle)


def test_a_message_is_no_kernel_but_what_follows_waits_for_it() -> None:
    """The reader of "b" could run from 80, when the message that writes it has arrived."""
    tasks = ((0, 0, 0, 60, "", "a"), (0, -1, 10, 80, "a", "b"), (1, 0, 90, 100, "b", "c"))
    time = attribute_time(trace_of_tasks(*tasks, operations=(0, TRANSFER, 0)), 0, 100, workers=1, ranks=2)
    assert time["kernel_fraction"] == pytest.approx(70 / 200)
    assert time["runtime_overhead_fraction"] == pytest.approx(10 / 200)
    assert time["waiting_fraction"] == pytest.approx(120 / 200)
