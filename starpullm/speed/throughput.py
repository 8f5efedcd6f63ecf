"""Throughput: tokens per millisecond, beside what the machine could do at most and where the time goes.

``starpullm.speed.measure`` calls it, in a process or in ranks of its own for each configuration.

Size letters: B batch, T sequence length, C channels, L layers, Vp padded vocabulary.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.dependencies import required_edges
from starpullm.checks.result import json_value
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.machine import peak_gflops, processor, simd_level
from starpullm.processes.progress import report_phase
from starpullm.runtime import Partition, Runtime
from starpullm.trace import Trace
from starpullm.trainer import Trainer

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

__all__ = [
    "Configuration",
    "KernelTime",
    "Throughput",
    "attribute_time",
    "matmul_flops",
    "measure_throughput",
    "merge_ranks",
]

_Value = TypeVar("_Value")

_SEED = 1  # of the generated tokens
_PEAK_SECONDS = 0.1
_PEAK_REPETITIONS = 3  # before, and as many after
_TRANSFER = "transfer"  # the operation that is a message between ranks, and no worker's


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is measured.

    Parameters
    ----------
    model
        Its name, for people.
    batch_size, seq_len
        B of all ranks together, and T.
    partition, scheduler
        Of each rank.
    sub_batches
        Of each rank's part of the batch.
    reduction
        Of the gradients.
    ranks
        Processes under mpirun; 1: a process alone.
    iterations, warm_up
        Steps that are measured, and steps before them that aren't.
    matmul, blas_library
        As ``Runtime``'s.

    Raises
    ------
    InvalidArgumentError
        If the batch can't be cut so, a number isn't positive, or the partition isn't one.
    """

    model: str
    batch_size: int
    seq_len: int
    partition: str
    scheduler: str
    sub_batches: int
    reduction: str
    ranks: int
    iterations: int
    warm_up: int
    matmul: str = "strict"
    blas_library: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "seq_len", "sub_batches", "ranks", "iterations"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: found {getattr(self, name)}, expected at least 1")
        if self.warm_up < 0:
            raise InvalidArgumentError(f"warm_up: found {self.warm_up}, expected at least 0")
        Partition.parse(self.partition)
        if self.batch_size % (self.ranks * self.sub_batches):
            raise InvalidArgumentError(
                f"batch_size: found {self.batch_size}, expected a multiple of {self.ranks * self.sub_batches} "
                f"(ranks {self.ranks}, sub-batches of each {self.sub_batches})"
            )

    def __str__(self) -> str:
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        matmul = "" if self.matmul == "strict" else f", {self.matmul}"
        return f"{self.partition}{ranks}, S = {self.sub_batches}, {self.reduction}{matmul}"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What was measured of a configuration.

    The speed is that of a run without trace. The rest of the time is attributed in a second run, with trace, whose
    speed is given too. Of the time of all workers together, kernels take ``kernel_fraction``. The remainder is idle: as
    long as a worker has nothing to do although the data of a task of its rank are there, that is
    ``runtime_overhead_fraction``, StarPU's own cost: the task hasn't been submitted yet, hasn't been found yet, or its
    data are still on the way from another rank, and with ``redux`` StarPU's own additions. As long as there is no such
    task, it is ``waiting_fraction``: the task graph has no more that could run at the same time. The three add up to
    1. Threads of one worker that wait for each other do so in kernels.

    Parameters
    ----------
    configuration
        What was run.
    processor
        Its name, and how many cores the machine has.
    simd_level
        Of its kernels.
    matmul
        ``Runtime.matmul``: ``"strict"``, or which BLAS.
    tokens_per_ms
        Of all ranks, over all iterations, submitted ahead.
    step_seconds, traced_step_seconds
        An iteration's time, without and with trace.
    matmul_flops
        ``matmul_flops`` of a step.
    matmul_gflops
        10^9 of them per second.
    matmul_limit_gflops
        What the same number of cores does at most with one rounding per operation, as the contract wants it: registers
        only, the median of runs directly before and after the steps in the same processes.
    matmul_limit_range
        The least and the most of these runs. If they are far apart, the machine was doing something else as well.
    fma_peak_gflops
        The same with fused multiplications and additions, which the contract rules out; None if there are none.
    fraction_of_limit
        ``matmul_gflops`` of ``matmul_limit_gflops``: what isn't matmul counts as lost.
    kernel_fraction, runtime_overhead_fraction, waiting_fraction
        See above.
    idle_fractions
        Per worker, rank 0's first: the part of the time without a kernel.
    seconds_by_operation
        Kernels' time of a step, of all workers together, longest first.
    tasks_per_step
        Of all ranks.
    peak_rss_bytes
        The most memory that was resident, without trace, of all ranks together: the sum of each one's maximum.
    """

    configuration: Configuration
    processor: str
    simd_level: str
    matmul: str
    tokens_per_ms: float
    step_seconds: float
    traced_step_seconds: float
    matmul_flops: int
    matmul_gflops: float
    matmul_limit_gflops: float
    matmul_limit_range: tuple[float, float]
    fma_peak_gflops: float | None
    fraction_of_limit: float
    kernel_fraction: float
    runtime_overhead_fraction: float
    waiting_fraction: float
    idle_fractions: tuple[float, ...]
    seconds_by_operation: dict[str, float]
    tasks_per_step: float
    peak_rss_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, by the names of the fields."""
        return {field.name: json_value(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``as_json`` was called on."""
        low, high = values["matmul_limit_range"]
        return cls(
            **{
                **values,
                "configuration": Configuration(**values["configuration"]),
                "matmul_limit_range": (low, high),
                "idle_fractions": tuple(values["idle_fractions"]),
            }
        )


def matmul_flops(model: ModelConfig, batch_size: int, seq_len: int) -> int:
    """Return the multiplications and additions of a training step that are in matrix products.

    A linear layer from C to OC channels has 2·B·T·C·OC in its forward product and as many in each of its two backward
    products. A layer's four have 12·C² weights together (3C² + C² + 4C² + 4C²), the logits Vp·C. Attention has two
    products forward (queries with keys, weights with values) and four backward; each of them has 2·C per pair of a
    position and one that isn't later, of which there are T·(T+1)/2 in a sequence. In all
    6·B·T·(12·L·C² + Vp·C) + 6·B·L·C·T·(T+1).

    Parameters
    ----------
    model
        The model's sizes.
    batch_size, seq_len
        B of all ranks together, and T.
    """
    C, L = model.channels, model.num_layers
    linear = 6 * batch_size * seq_len * (12 * L * C * C + model.padded_vocab_size * C)
    attention = 6 * batch_size * L * C * seq_len * (seq_len + 1)
    return linear + attention


class KernelTime(NamedTuple):
    """How the time of all workers is spent, as fractions that add up to 1, and each worker's idle part.

    See ``Throughput``; workers of rank 0 first.
    """

    kernels: float
    runtime: float
    waiting: float
    idle: tuple[float, ...]


def attribute_time(trace: Trace, begin_ns: int, end_ns: int, *, workers: int, ranks: int = 1) -> KernelTime:
    """Attribute the time of all workers to kernels, to the runtime and to waiting, as ``Throughput`` says.

    Before the first and after the last kernel a worker waits for the runtime.

    Parameters
    ----------
    trace
        Every task, with the times of the rank that ran it.
    begin_ns, end_ns
        When the first task's submission began and when the end of all was known, on the tasks' clock.
    workers, ranks
        Workers of each rank, and how many ranks.
    """
    tasks = trace.tasks
    ends = tasks["end_ns"]
    predecessors = required_edges(tasks, trace.accesses).predecessors
    ready = np.array([max((ends[before] for before in row), default=begin_ns) for row in predecessors], np.int64)
    kernel = is_kernel(trace)
    last_end = ends[kernel].max(initial=begin_ns)
    capacity = (end_ns - begin_ns) * workers * ranks
    busy_time, runtime_time = 0, 0
    idle = []
    for rank in range(ranks):
        own = kernel & (tasks["rank"] == rank)
        start, end = tasks["start_ns"][own], tasks["end_ns"][own]
        busy = np.bincount(tasks["worker"][own], weights=end - start, minlength=workers)
        busy_time += int(busy.sum())
        idle += [1 - float(of_worker) / (end_ns - begin_ns) for of_worker in busy]
        # Becoming ready, starting and ending change how many tasks could run and how many do. Making the end known is
        # one more thing to do.
        count = len(start)
        times = np.concatenate([np.minimum(ready[own], start), start, end, [last_end, end_ns]])
        could_run = np.concatenate([np.ones(count), -np.ones(count), np.zeros(count), [1, -1]])
        running = np.concatenate([np.zeros(count), np.ones(count), -np.ones(count), [0, 0]])
        order = np.argsort(times, kind="stable")
        spans = np.diff(times[order])
        unused = np.minimum(workers - np.cumsum(running[order])[:-1], np.cumsum(could_run[order])[:-1])
        runtime_time += int((spans * unused).sum())
    waiting_time = capacity - busy_time - runtime_time
    return KernelTime(busy_time / capacity, runtime_time / capacity, waiting_time / capacity, tuple(idle))


def merge_ranks(trace: Trace, tasks_of_ranks: Sequence[NDArray[np.void]]) -> Trace:
    """Return a rank's trace with the times and workers of all ranks' traces, each task's from the rank that ran it.

    A message between two ranks, which both have recorded, ends where it ends last.
    """
    tasks = trace.tasks.copy()
    kernel = is_kernel(trace)
    for rank, recorded in enumerate(tasks_of_ranks):
        own = kernel & (tasks["rank"] == rank)
        for name in ("worker", "submit_ns", "start_ns", "end_ns"):
            tasks[name][own] = recorded[name][own]
        ends = tasks["end_ns"]
        ends[~kernel] = np.maximum(ends[~kernel], recorded["end_ns"][~kernel])
    return Trace(tasks, trace.accesses, trace.operations, trace.handles)


def measure_throughput(
    configuration: Configuration,
    checkpoint: Path,
    comm: Comm | None = None,
    guard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Throughput:
    """Measure a configuration in this process, or in all ranks, which all get the same result.

    No runtime may be open: what the machine can do is measured before StarPU starts and after it has ended, since its
    workers look for tasks all the time.

    Parameters
    ----------
    configuration
        What to run; its ``ranks`` is the communicator's size.
    checkpoint
        The model to start from.
    comm
        An mpi4py communicator; None: this process alone.
    guard
        Makes what is entered within a runtime and within a trainer, to keep them from waiting, when they are closed,
        for ranks that have failed.

    Raises
    ------
    InvalidArgumentError
        If the partition, the sequence length or the scheduler can't be had.
    """
    ranks = comm.Get_size() if comm else 1
    if ranks != configuration.ranks:
        raise InvalidArgumentError(f"ranks: found {ranks}, expected {configuration.ranks}")
    partition = Partition.parse(configuration.partition)
    cores = partition.workers * partition.threads
    strict, fused = measure_peaks(cores, comm)
    with (
        Runtime(
            partition,
            configuration.scheduler,
            comm,
            matmul=configuration.matmul,
            blas_library=configuration.blas_library,
        ) as runtime,
        guard(),
    ):
        matmul = runtime.matmul
        model, timed = _run(configuration, checkpoint, runtime, guard, trace=False)
        peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _, traced = _run(configuration, checkpoint, runtime, guard, trace=True)
    strict_after, fused_after = measure_peaks(cores, comm)
    assert traced.trace is not None
    spent = attribute_time(traced.trace, traced.begin_ns, traced.end_ns, workers=partition.workers, ranks=ranks)
    limit = statistics.median(strict + strict_after)
    step_seconds = timed.seconds / configuration.iterations
    flops = matmul_flops(model, configuration.batch_size, configuration.seq_len)
    return Throughput(
        configuration=configuration,
        processor=processor(),
        simd_level=simd_level(),
        matmul=matmul,
        tokens_per_ms=configuration.batch_size * configuration.seq_len / step_seconds / 1e3,
        step_seconds=step_seconds,
        traced_step_seconds=traced.seconds / configuration.iterations,
        matmul_flops=flops,
        matmul_gflops=flops / step_seconds / 1e9,
        matmul_limit_gflops=limit,
        matmul_limit_range=(min(strict + strict_after), max(strict + strict_after)),
        fma_peak_gflops=statistics.median(fused + fused_after) or None,
        fraction_of_limit=flops / step_seconds / 1e9 / limit,
        kernel_fraction=spent.kernels,
        runtime_overhead_fraction=spent.runtime,
        waiting_fraction=spent.waiting,
        idle_fractions=spent.idle,
        seconds_by_operation={
            operation: seconds / configuration.iterations
            for operation, seconds in traced.trace.seconds_by_operation().items()
            if operation != _TRANSFER
        },
        tasks_per_step=int(is_kernel(traced.trace).sum()) / configuration.iterations,
        peak_rss_bytes=sum(all_values(comm, peak_rss)),
    )


# ---- What the interleaved measurement shares ----


class Run(NamedTuple):
    """Iterations that were run on all ranks: when they began and ended, and what every rank recorded, if it did."""

    begin_ns: int
    end_ns: int
    trace: Trace | None

    @property
    def seconds(self) -> float:
        """From the first begin to the last end."""
        return (self.end_ns - self.begin_ns) * 1e-9


def open_trainer(configuration: Configuration, checkpoint: Path, runtime: Runtime, *, trace: bool) -> Trainer:
    """Return this rank's trainer of a configuration, not warmed up."""
    return Trainer(
        runtime,
        checkpoint,
        batch_size=configuration.batch_size // configuration.ranks,
        seq_len=configuration.seq_len,
        sub_batches=configuration.sub_batches,
        reduction=configuration.reduction,
        trace=trace,
    )


def make_batches(configuration: Configuration, trainer: Trainer, number: int) -> list[list[NDArray[np.int32]]]:
    """Return this rank's inputs and targets of so many steps."""
    batch_size = trainer.batch_size
    own = slice(trainer.runtime.rank * batch_size, (trainer.runtime.rank + 1) * batch_size)
    sizes = (configuration.batch_size, configuration.seq_len, trainer.config.vocab_size)
    return [[part[own] for part in generate_tokens(_SEED, step, *sizes)] for step in range(number)]


def run_steps(trainer: Trainer, batches: Sequence[Sequence[NDArray[np.int32]]], *, trace: bool) -> Run:
    """Run steps that are submitted ahead, on all ranks from a barrier on, and return the same on each rank."""
    comm = trainer.runtime.comm
    if trace:
        trainer.clear_trace()
    if comm:
        comm.Barrier()
    begin = time.monotonic_ns()
    for inputs, targets in batches:
        trainer.submit(inputs, targets)
    trainer.wait()
    end = time.monotonic_ns()
    # All ranks are on this machine, and have one clock.
    begins, ends = zip(*all_values(comm, (begin, end)), strict=True)
    recorded = None
    if trace:
        own_trace = trainer.trace()
        recorded = merge_ranks(own_trace, all_values(comm, own_trace.tasks))
    return Run(min(begins), max(ends), recorded)


def measure_peaks(
    cores: int, comm: Comm | None, repetitions: int = _PEAK_REPETITIONS
) -> tuple[list[float], list[float]]:
    """Return all ranks' strict and fused peaks of so many cores each, measured alternately."""
    report_phase("measuring what the machine can do")
    strict: list[float] = []
    fused: list[float] = []
    for _ in range(repetitions):
        for is_fused, peaks in ((False, strict), (True, fused)):
            if comm:
                comm.Barrier()
            peaks.append(sum(all_values(comm, peak_gflops(cores, fused=is_fused, seconds=_PEAK_SECONDS))))
    return strict, fused


def all_values(comm: Comm | None, value: _Value) -> list[_Value]:
    """Return every rank's value on every rank."""
    return comm.allgather(value) if comm else [value]


def is_kernel(trace: Trace) -> NDArray[np.bool_]:
    """Return which tasks a worker ran."""
    names = np.array([name != _TRANSFER for name in trace.operations], bool)
    kernels: NDArray[np.bool_] = names[trace.tasks["operation"]]
    return kernels


# ---- How it works ----


def _run(
    configuration: Configuration,
    checkpoint: Path,
    runtime: Runtime,
    guard: Callable[[], AbstractContextManager[None]],
    *,
    trace: bool,
) -> tuple[ModelConfig, Run]:
    report_phase("loading the model")
    with open_trainer(configuration, checkpoint, runtime, trace=trace) as trainer, guard():
        batches = make_batches(configuration, trainer, configuration.warm_up + configuration.iterations)
        report_phase("warming up")
        for inputs, targets in batches[: configuration.warm_up]:
            trainer.submit(inputs, targets)
        trainer.wait()
        report_phase("running the iterations")
        return trainer.config, run_steps(trainer, batches[configuration.warm_up :], trace=trace)
