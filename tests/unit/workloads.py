"""A workload whose fields the tests change, and what may have been measured of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starpullm.speed.measure import Throughput
from starpullm.speed.workload import Workload


def workload(**changes: Any) -> Workload:
    """Return tiny on one worker of one thread, with these fields changed."""
    return replace(Workload(model="tiny", batch_size=2, seq_len=8, partition="1x1", iterations=3, warm_up=2), **changes)


def throughput(workload: Workload, limits: tuple[float, float] = (100.0, 101.0)) -> Throughput:
    """Return a measurement; the limit is measured as the least and the most of `limits`."""
    return Throughput(
        configuration=workload,
        processor="some processor, 2 cores",
        simd_level="ref",
        matmul="strict",
        tokens_per_ms=2.0,
        step_seconds=0.016,
        traced_step_seconds=0.017,
        matmul_flops=1_000_000,
        matmul_gflops=50.0,
        matmul_limit_gflops=100.0,
        matmul_limit_range=list(limits),
        fma_peak_gflops=None,
        fraction_of_limit=0.5,
        kernel_fraction=0.5,
        runtime_overhead_fraction=0.25,
        waiting_fraction=0.25,
        idle_fractions=[0.5],
        seconds_by_operation={"matmul_forward": 0.01, "adamw_update": 0.005},
        waits={},
        tasks_per_step=93.0,
        peak_rss_bytes=60_000_000,
    )
