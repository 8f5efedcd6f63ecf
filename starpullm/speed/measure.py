"""Throughput of one workload: tokens per millisecond, the fraction of the machine's limit, and where the time goes."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from starpullm.checks.result import json_value
from starpullm.errors import FormatError, InvalidArgumentError, MissingDependencyError, StarpullmError
from starpullm.files.model import ModelConfig
from starpullm.machine import processor, simd_level
from starpullm.processes.children import Child, Lost, Raised, Reply
from starpullm.processes.job import ExitedWith
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import default_exit_status, guarded
from starpullm.runtime import Partition, Runtime
from starpullm.speed.attribution import attribute_time
from starpullm.speed.limit import matmul_flops, measure_peaks
from starpullm.speed.workload import Run, Workload, all_values, make_batches, open_runtime, open_trainer, run_steps
from starpullm.traces.merge import TRANSFER, is_kernel

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_PEAK_REPETITIONS = 3  # before the steps, and as many after them

_NUMBERS = ("tokens_per_ms", "matmul_flops", "matmul_gflops", "matmul_limit_gflops", "fraction_of_limit")

_REFUSED = 2  # the exit status of a rank: the workload is not possible
_REFUSALS: dict[str, type[StarpullmError]] = {
    kind.__name__: kind for kind in (InvalidArgumentError, FormatError, MissingDependencyError)
}


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What was measured of a workload.

    The speed is that of a run without trace. A second run, with trace, shows where the time goes; its speed is given
    too. The time of all workers is divided into three fractions that add up to 1: ``kernel_fraction`` is spent in
    kernels, and the rest is idle. A worker's idle time counts as ``runtime_overhead_fraction``, StarPU's own cost,
    while the data of some task of its rank are there: the task hasn't been submitted yet, the scheduler hasn't found it
    yet, its data are still on the way from another rank, or, with ``redux``, StarPU itself adds. It counts as
    ``waiting_fraction`` while there is no such task: the task graph has no more tasks that could run at the same time.
    Threads of one worker that wait for each other do so within a kernel.

    Parameters
    ----------
    matmul
        ``Runtime.matmul``: ``"strict"``, or which BLAS.
    tokens_per_ms
        Of all ranks, over all iterations, which are submitted ahead.
    matmul_flops
        ``limit.matmul_flops`` of a step.
    matmul_limit_gflops
        The most that the same number of cores does with one rounding per operation, as the contract requires: in
        registers only, the median of measurements directly before and after the steps in the same processes.
    matmul_limit_range
        The least and the most of these measurements. If they are far apart, the machine was busy with something else.
    fma_peak_gflops
        The same with fused multiply-add, which the contract excludes; None if the kernels' level has none.
    fraction_of_limit
        ``matmul_gflops`` divided by ``matmul_limit_gflops``: all time outside of matrix products counts as lost.
    idle_fractions
        For each worker, those of rank 0 first: the fraction of the time without a kernel.
    seconds_by_operation
        The kernels' time of a step, of all workers together, longest first.
    tasks_per_step
        Of all ranks.
    peak_rss_bytes
        The most resident memory without trace: the sum of all ranks' maxima.
    """

    configuration: Workload
    processor: str
    simd_level: str
    matmul: str
    tokens_per_ms: float
    step_seconds: float
    traced_step_seconds: float
    matmul_flops: int
    matmul_gflops: float
    matmul_limit_gflops: float
    matmul_limit_range: list[float]
    fma_peak_gflops: float | None
    fraction_of_limit: float
    kernel_fraction: float
    runtime_overhead_fraction: float
    waiting_fraction: float
    idle_fractions: list[float]
    seconds_by_operation: dict[str, float]
    tasks_per_step: float
    peak_rss_bytes: int

    @property
    def was_disturbed(self) -> bool:
        """Whether the measurements of the limit differ by more than they do where nothing else runs."""
        low, high = self.matmul_limit_range
        return high > 1.25 * low

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the object that ``json_value`` was called on.

        Raises
        ------
        InvalidArgumentError
            If the configuration isn't possible.
        TypeError, KeyError
            If a field is missing, unknown, or of another type.
        """
        made = cls(**{**values, "configuration": Workload(**values["configuration"])})
        for name in _NUMBERS:
            if type(getattr(made, name)) not in (int, float):
                raise TypeError(f"{name}: found {getattr(made, name)!r:.40}, expected a number")
        return made


def bench(workload: Workload, checkpoint: Path, time_limit: float) -> Throughput:
    """Measure a workload in a child process, or under mpirun if it has several ranks, within so many seconds.

    Raises
    ------
    InvalidArgumentError
        If the workload isn't possible, with the child's message.
    MissingDependencyError
        If there is no mpirun for several ranks.
    RuntimeFailureError
        If the child failed for another reason, or was not done in time.
    """
    arguments = {"workload": asdict(workload), "checkpoint": str(checkpoint)}
    with Child(str(workload), _serve_throughput, arguments, ranks=workload.ranks) as child:
        return Throughput.from_json(result_of(child, child.start(time_limit)))


def result_of(child: Child, reply: Reply) -> Any:
    """Return the value of a child's reply, or raise what `bench` raises."""
    if isinstance(reply, Raised) and reply.kind in _REFUSALS:
        raise _REFUSALS[reply.kind](f"{child.name}: {reply.sentence}")
    if isinstance(reply, Lost) and isinstance(reply.ending, StarpullmError):
        raise reply.ending
    if isinstance(reply, Lost) and isinstance(reply.ending, ExitedWith) and reply.ending.status == _REFUSED:
        raise InvalidArgumentError(f"{child.name}: {reply.ending.sentence}")
    return reply.result()


# ---- In the child, or in each rank ----


def _exit_status(error: BaseException) -> int:
    return _REFUSED if isinstance(error, tuple(_REFUSALS.values())) else default_exit_status(error)


@contextmanager
def _serve_throughput(
    comm: Comm | None, workload: Mapping[str, Any], checkpoint: str
) -> Iterator[tuple[dict[str, Any], Callable[[Any], None]]]:
    """Yield the result; there are no requests."""

    def guard() -> AbstractContextManager[None]:
        return guarded(comm, _exit_status) if comm is not None else nullcontext()

    with guard():
        result = _measure(Workload(**workload), Path(checkpoint), comm, guard)
    yield json_value(result), lambda _: None


def _measure(
    workload: Workload, checkpoint: Path, comm: Comm | None, guard: Callable[[], AbstractContextManager[None]]
) -> Throughput:
    """Measure a workload; all ranks return the same result.

    The guard is entered inside a runtime and inside a trainer, so that closing them does not wait for a rank that has
    failed. The limit is measured before StarPU starts and after it has ended, because its workers poll.
    """
    before = measure_peaks(workload.cores, comm, _PEAK_REPETITIONS)
    with open_runtime(workload, comm) as runtime, guard():
        matmul = runtime.matmul
        model, timed = _run(workload, checkpoint, runtime, guard, trace=False)
        peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _, traced = _run(workload, checkpoint, runtime, guard, trace=True)
    after = measure_peaks(workload.cores, comm, _PEAK_REPETITIONS)
    strict, fused = (first + second for first, second in zip(before, after, strict=True))
    limit = statistics.median(strict)
    step_seconds, traced_step_seconds = (
        (of.end_ns - of.begin_ns) * 1e-9 / workload.iterations for of in (timed, traced)
    )
    flops = matmul_flops(model, workload.batch_size, workload.seq_len)
    return Throughput(
        configuration=workload,
        processor=processor(),
        simd_level=simd_level(),
        matmul=matmul,
        tokens_per_ms=workload.tokens / step_seconds / 1e3,
        step_seconds=step_seconds,
        traced_step_seconds=traced_step_seconds,
        matmul_flops=flops,
        matmul_gflops=flops / step_seconds / 1e9,
        matmul_limit_gflops=limit,
        matmul_limit_range=[min(strict), max(strict)],
        fma_peak_gflops=statistics.median(fused) or None,
        fraction_of_limit=flops / step_seconds / 1e9 / limit,
        peak_rss_bytes=sum(all_values(comm, peak_rss)),
        **_times(workload, traced),
    )


def _times(workload: Workload, traced: Run) -> dict[str, Any]:
    """Return what ``Throughput`` has from the trace."""
    trace = traced.trace
    assert trace is not None
    workers = Partition.parse(workload.partition).workers
    spent = attribute_time(trace, traced.begin_ns, traced.end_ns, workers=workers, ranks=workload.ranks)
    return {
        "kernel_fraction": spent.kernels,
        "runtime_overhead_fraction": spent.runtime,
        "waiting_fraction": spent.waiting,
        "idle_fractions": list(spent.idle),
        "seconds_by_operation": {
            operation: seconds / workload.iterations
            for operation, seconds in trace.seconds_by_operation().items()
            if operation != TRANSFER
        },
        "tasks_per_step": int(is_kernel(trace).sum()) / workload.iterations,
    }


def _run(
    workload: Workload,
    checkpoint: Path,
    runtime: Runtime,
    guard: Callable[[], AbstractContextManager[None]],
    *,
    trace: bool,
) -> tuple[ModelConfig, Run]:
    report_phase("loading the model")
    with open_trainer(workload, checkpoint, runtime, trace=trace) as trainer, guard():
        batches = make_batches(workload, trainer, workload.warm_up + workload.iterations)
        report_phase("warming up")
        for inputs, targets in batches[: workload.warm_up]:
            trainer.submit(inputs, targets)
        trainer.wait()
        report_phase("running the iterations")
        return trainer.config, run_steps(trainer, batches[workload.warm_up :], trace=trace)
