"""Throughput of one workload: tokens per millisecond, the fraction of the machine's limit, and where the time goes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from starpullm.speed.speed_verdict import was_disturbed
from starpullm.speed.variant import Variant
from starpullm.speed.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What was measured of a workload.

    The speed is that of a run without trace. A second run, with trace, shows where the time goes; its speed is given
    too. The time of all workers is divided into three fractions that add up to 1: ``kernel_fraction`` is spent in
    kernels, and the rest is idle. A worker's idle time counts as ``runtime_overhead_fraction``, StarPU's own cost,
    while the data of some task of its rank are there: the task hasn't been submitted yet, the scheduler hasn't found it
    yet, its data are still on the way from another rank, or, with ``redux``, StarPU itself adds. It counts as
    ``waiting_fraction`` while there is no such task: the task graph has no more tasks that could run at the same time.
    Threads of one worker that wait for each other do so within a kernel. Speeds and tasks are those of all ranks.
    """

    configuration: Workload
    processor: str
    simd_level: str
    matmul: str
    tokens_per_ms: float
    """Over all iterations, which are submitted ahead."""
    step_seconds: float
    traced_step_seconds: float
    matmul_flops: int
    matmul_gflops: float
    matmul_limit_gflops: float
    """The most that the same number of cores does with one rounding per operation, as the contract requires: in
    registers only, the median of measurements directly before and after the steps in the same processes."""
    matmul_limit_range: list[float]
    """The least and the most of these. If they are far apart, the machine was busy with something else."""
    fma_peak_gflops: float | None
    """The same with fused multiply-add, which the contract excludes; None if the kernels' level has none."""
    fraction_of_limit: float
    """All time outside of matrix products counts as lost."""
    kernel_fraction: float
    runtime_overhead_fraction: float
    waiting_fraction: float
    idle_fractions: list[float]
    """Of each worker's time, those of rank 0 first."""
    seconds_by_operation: dict[str, float]
    """The kernels' time of a step, of all workers together, longest first."""
    waits: dict[str, float]
    """``predict.prediction.Prediction.waits`` as recorded; empty with one worker, and over ranks."""
    tasks_per_step: float
    peak_rss_bytes: int
    """Without trace: the sum of all ranks' maxima."""

    @property
    def was_disturbed(self) -> bool:
        """Whether something else ran while the limit was measured."""
        return was_disturbed(*self.matmul_limit_range)


def bench(workload: Workload, checkpoint: Path, time_limit: float) -> Throughput:
    """Measure a workload in a child process, or under mpirun if it has several ranks, within so many seconds."""
    variant = Variant(workload.model)
    with ExitStack() as stack:
        variant.start(workload, checkpoint, time_limit, stack, time_limit)
        return Throughput(configuration=workload, **variant.ask("throughput"))
