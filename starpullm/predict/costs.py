"""What tasks cost: by the operations of their matmuls at a given speed, or as tasks of the same kind have taken."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.graph.merge import is_kernel
from starpullm.runtime import Partition
from starpullm.speed.attribution import attribute_time
from starpullm.speed.workload import Workload
from starpullm.trace import Trace
from starpullm.traces.traced_run import TracedRun

TaskKind = tuple[str, tuple[int, ...]]
"""An operation and the bytes of its accesses, of a tile those of its tensor."""

_TILE = re.compile(r"%\d+")


@dataclass(frozen=True)
class MatmulSpeed:
    """So many operations of matmuls per nanosecond on each thread, and nothing for all else."""

    gflops: float
    runtime_ns: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.gflops < float("inf"):
            raise InvalidArgumentError(f"gflops: found {self.gflops:g}, expected a finite number above 0")

    def __str__(self) -> str:
        return f"matmuls at {self.gflops:g} GFLOP/s a thread, all other kernels free"

    def of_tasks(self, trace: Trace, config: ModelConfig, workload: Workload) -> NDArray[np.float64]:
        """Return the duration of each task in nanoseconds on a worker of the workload, 0 for messages."""
        sub_batch_size = workload.batch_size // (workload.pipelines * workload.sub_batches)
        operations = matmul_operations(trace, config, sub_batch_size, workload.seq_len)
        threads = Partition.parse(workload.partition).threads
        durations: NDArray[np.float64] = operations / (self.gflops * threads)
        return durations


@dataclass(frozen=True)
class Measured:
    """The mean duration of each kind of task in nanoseconds, on workers of so many threads each.

    A task on a tile takes the tile's share of what one on the whole tensor takes.

    ``runtime_ns`` is the runtime's own cost of a task, for which its worker is idle.
    """

    where: str
    means: Mapping[TaskKind, float]
    threads: int
    runtime_ns: float

    def __str__(self) -> str:
        return f"as measured {self.where}, {self.runtime_ns / 1000:.0f} us more for each task"

    def of_tasks(self, trace: Trace, config: ModelConfig, workload: Workload) -> NDArray[np.float64]:
        """Return the same as `MatmulSpeed`; tasks of a kind that wasn't measured are an `InvalidArgumentError`."""
        durations = np.zeros(len(trace))
        kinds, shares = kinds_of(trace)
        for number, (kind, kernel) in enumerate(zip(kinds, is_kernel(trace).tolist(), strict=True)):
            if not kernel:
                continue
            if kind not in self.means:
                raise InvalidArgumentError(
                    f"durations {self.where}: found no {kind[0]} with accesses of "
                    f"{', '.join(map(str, kind[1]))} bytes, expected the same model, sub-batches and reduction, and "
                    "gradients in tiles or not"
                )
            durations[number] = self.means[kind] * shares[number]
        return durations * self.threads / Partition.parse(workload.partition).threads


Costs: TypeAlias = MatmulSpeed | Measured


def costs_of_run(where: str, run: TracedRun) -> Measured:
    """Return what the tasks of a recorded run took, whose ranks have partitions of the same size."""
    trace, partition = run.trace, Partition.parse(run.ranks[0].partition)
    if not run.has_run.any():
        raise InvalidArgumentError(f"durations {where}: found no task that has run, expected a recorded training")
    begin, end = run.origin_ns, int(trace.tasks["end_ns"].max())
    runtime = runtime_cost(trace, begin, end, workers=partition.workers, ranks=len(run.ranks))
    return Measured(where, mean_durations(trace), partition.threads, runtime)


def runtime_cost(trace: Trace, begin_ns: int, end_ns: int, *, workers: int, ranks: int) -> float:
    """Return the runtime's own cost of a task in nanoseconds: ``attribute_time``'s share of all tasks."""
    spent = attribute_time(trace, begin_ns, end_ns, workers=workers, ranks=ranks)
    return (
        float(spent["runtime_overhead_fraction"]) * (end_ns - begin_ns) * workers * ranks / int(is_kernel(trace).sum())
    )


def kinds_of(trace: Trace) -> tuple[list[TaskKind], NDArray[np.float64]]:
    """Return the kind of each task, and the share of the tensors whose tile it accesses; 1 without one."""
    names = [_TILE.sub("", handle.name) for handle in trace.handles]
    of_tensors: defaultdict[str, int] = defaultdict(int)
    for name, handle in zip(names, trace.handles, strict=True):
        of_tensors[name] += handle.bytes
    whole = np.array([of_tensors[name] for name in names], np.int64)
    shares = np.array([handle.bytes for handle in trace.handles]) / whole
    sizes = whole[trace.accesses["handle"]].tolist()
    columns = (trace.tasks[name].tolist() for name in ("operation", "first_access", "num_accesses"))
    kinds = [
        (trace.operations[operation], tuple(sizes[first : first + count]))
        for operation, first, count in zip(*columns, strict=True)
    ]
    return kinds, np.minimum.reduceat(shares[trace.accesses["handle"]], trace.tasks["first_access"])


def mean_durations(trace: Trace) -> dict[TaskKind, float]:
    """Return how long the recorded tasks of each kind took on average, in nanoseconds; messages aren't among them."""
    taken: defaultdict[TaskKind, list[float]] = defaultdict(list)
    kinds, shares = kinds_of(trace)
    durations = ((trace.tasks["end_ns"] - trace.tasks["start_ns"]) / shares).tolist()
    for kind, duration, kernel in zip(kinds, durations, is_kernel(trace).tolist(), strict=True):
        if kernel:
            taken[kind].append(duration)
    return {kind: sum(of_kind) / len(of_kind) for kind, of_kind in taken.items()}


def matmul_operations(trace: Trace, config: ModelConfig, sub_batch_size: int, seq_len: int) -> NDArray[np.int64]:
    """Return the multiplications and additions of each task's matrix products, as ``speed.limit.matmul_flops`` counts.

    Those of a linear layer are twice its weight's elements for each token.
    """
    is_weight = np.array([handle.name.startswith(("params/", "grads/")) for handle in trace.handles], bool)
    elements = np.array([handle.bytes // 4 for handle in trace.handles], np.int64) * is_weight
    tasks = trace.tasks
    largest = np.maximum.reduceat(elements[trace.accesses["handle"]], tasks["first_access"])
    attention = 2 * sub_batch_size * config.channels * seq_len * (seq_len + 1)
    by_operation = {"attention_forward": attention, "attention_backward": 2 * attention}
    fixed = np.array([by_operation.get(name, 0) for name in trace.operations], np.int64)
    is_linear = np.array([name.startswith("matmul") for name in trace.operations], bool)
    linear = 2 * sub_batch_size * seq_len * largest * is_linear[tasks["operation"]]
    counts: NDArray[np.int64] = linear + fixed[tasks["operation"]]
    return counts
