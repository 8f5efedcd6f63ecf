"""Measurements of throughput: the number of operations, where the time goes, and the results as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK
from starpullm.checks.result import json_value
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import shipped_record
from starpullm.speed.attribution import attribute_time
from starpullm.speed.limit import matmul_flops
from starpullm.speed.measure import Throughput
from starpullm.trace import AccessMode, HandleInfo, Trace

from .workloads import throughput, workload

WORKLOAD = workload(batch_size=4, partition="2x1", sub_batches=2, ranks=2, iterations=10)
OPERATIONS = ("matmul_forward", "adamw_update", "transfer")
TRANSFER = OPERATIONS.index("transfer")


# ---- Operations ----


def test_flops_of_the_124m_model() -> None:
    """By hand: 123,568,128 weights in products (12 layers of 12·768², 50304·768), 6 operations each and token."""
    model = shipped_record("gpt2-124m").model
    weights = 12 * 12 * 589_824 + 38_633_472
    assert weights == 123_568_128
    attention = 12 * 4 * 6 * (2 * 768) * (64 * 65 // 2)
    assert attention == 920_125_440
    assert matmul_flops(model, 4, 64) == 6 * 256 * weights + attention == 190_720_770_048


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


def trace_of(*tasks: tuple[int, int, int, int, str, str], operations: tuple[int, ...] | None = None) -> Trace:
    """Tasks as (rank, worker, start, end, handles read, handles written); a handle is a letter."""
    table = np.zeros(len(tasks), TRACE_TASK)
    accesses: list[tuple[int, AccessMode]] = []
    for index, (rank, worker, start, end, reads, writes) in enumerate(tasks):
        own = [(ord(handle) - ord("a"), AccessMode.READ) for handle in reads]
        own += [(ord(handle) - ord("a"), AccessMode.WRITE) for handle in writes]
        operation = operations[index] if operations else 0
        table[index] = (index, 0, operation, -1, -1, rank, worker, len(own), 0, len(accesses), 0, start, end)
        accesses += own
    handles = tuple(HandleInfo(number, chr(ord("a") + number), 4) for number in range(26))
    return Trace(table, np.array(accesses, TRACE_ACCESS), OPERATIONS, handles)


def test_a_chain_on_one_worker_never_waits_for_the_graph() -> None:
    """The second task could run from 40 on and starts at 50; before 10 and after 90 there is the runtime alone."""
    time = attribute_time(trace_of((0, 0, 10, 40, "", "a"), (0, 0, 50, 90, "a", "b")), 0, 100, workers=1)
    assert time.kernels == pytest.approx(0.7)
    assert time.runtime == pytest.approx(0.3)
    assert time.waiting == pytest.approx(0.0)
    assert time.idle == pytest.approx([0.3])


def test_a_chain_leaves_a_second_worker_waiting() -> None:
    """Of 200 units, 70 are kernels, and while none runs there is one task for one of the two idle workers: 30."""
    time = attribute_time(trace_of((0, 0, 10, 40, "", "a"), (0, 1, 50, 90, "a", "b")), 0, 100, workers=2)
    assert time.kernels == pytest.approx(70 / 200)
    assert time.runtime == pytest.approx(30 / 200)
    assert time.waiting == pytest.approx(100 / 200)
    assert time.idle == pytest.approx([0.7, 0.6])


def test_independent_tasks_that_run_after_each_other_are_the_runtimes_cost() -> None:
    """The second could have run from the start on the other worker; then from 50 nothing is left for that."""
    time = attribute_time(trace_of((0, 0, 0, 50, "", "a"), (0, 0, 50, 100, "", "b")), 0, 100, workers=2)
    assert time.kernels == pytest.approx(0.5)
    assert time.runtime == pytest.approx(0.25)
    assert time.waiting == pytest.approx(0.25)
    assert time.idle == pytest.approx([0.0, 1.0])


def test_a_task_is_only_for_the_workers_of_its_rank() -> None:
    """Rank 1's task needs rank 0's data, which are there at 60; nothing but waiting before that, and the way after."""
    time = attribute_time(trace_of((0, 0, 0, 60, "", "a"), (1, 0, 70, 100, "a", "b")), 0, 100, workers=1, ranks=2)
    assert time.kernels == pytest.approx(90 / 200)
    assert time.runtime == pytest.approx(10 / 200)
    assert time.waiting == pytest.approx(100 / 200)
    assert time.idle == pytest.approx([0.4, 0.7])


def test_a_message_is_no_kernel_but_what_follows_waits_for_it() -> None:
    """The reader of "b" could run from 80, when the message that writes it has arrived."""
    tasks = ((0, 0, 0, 60, "", "a"), (0, -1, 10, 80, "a", "b"), (1, 0, 90, 100, "b", "c"))
    time = attribute_time(trace_of(*tasks, operations=(0, TRANSFER, 0)), 0, 100, workers=1, ranks=2)
    assert time.kernels == pytest.approx(70 / 200)
    assert time.runtime == pytest.approx(10 / 200)
    assert time.waiting == pytest.approx(120 / 200)
