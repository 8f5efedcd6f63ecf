"""Steps that are recorded on this machine: tasks' durations come from them, and predictions are compared with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from starpullm.binding.library import find_library, starpu_limits
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.files.model import ModelConfig
from starpullm.graph.merge import is_kernel
from starpullm.graph.on_paper import FREE
from starpullm.graph.work import work_of
from starpullm.machine import count_cores
from starpullm.options import REDUCTIONS, WEIGHT_GRADIENTS
from starpullm.predict.costs import Measured, mean_durations, runtime_cost
from starpullm.predict.prediction import plan_of, schedule_of
from starpullm.processes import Comm
from starpullm.processes.children import Child
from starpullm.runtime import Partition
from starpullm.speed.worker import run_measured
from starpullm.speed.workload import Workload
from starpullm.trace import Trace

_PLACEMENTS = (("1x1", 1), ("2x1", 1), ("1x2", 1), ("1x1", 2))
"""Partitions and ranks that predictions are compared on, if machine and StarPU have such workers."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a step of a recorded run took, in seconds, and its tasks.

    ``model_seconds`` is what the model makes of it if each task takes what it has taken: its difference is the model's
    own error, without that of the durations.
    """

    configuration: Workload
    measured_seconds: float
    model_seconds: float
    costs: Measured


def measured_costs(config: ModelConfig, workload: Workload, checkpoint: Path, time_limit: float) -> Measured:
    """Record the workload's sub-batches on all cores of this machine, at least two of them on one rank.

    `InvalidArgumentError` is raised if this machine's memory is too small; other errors are those of `record_steps`.
    """
    cores = count_cores()
    threads = min(Partition.parse(workload.partition).threads, cores)
    here = _here(workload, f"{cores // threads}x{threads}", ranks=1)
    if workload.reduction == REDUCTIONS[0]:
        here = replace(here, weight_gradient_tiles=2)  # every kind of task, whatever the workload's tiles
    needed, memory = (
        int(plan_of(config, here).bytes_of_ranks().max()),
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    if needed > memory > 0:
        raise InvalidArgumentError(
            f"durations: found {needed} bytes of buffers to measure them, expected at most this machine's {memory}; "
            "--durations takes those of another machine, --gflops a speed"
        )
    return record_steps(here, checkpoint, time_limit).costs


def record_placements(workload: Workload, checkpoint: Path, time_limit: float) -> Iterator[Recorded]:
    """Record the workload's sub-batches in each placement that this machine has cores for; errors as above."""
    contexts = starpu_limits(find_library()).max_contexts
    for partition, ranks in _PLACEMENTS:
        size = Partition.parse(partition)
        if (size.threads == 1 or contexts) and size.workers * size.threads * ranks <= count_cores():
            yield record_steps(_here(workload, partition, ranks), checkpoint, time_limit)


def _here(workload: Workload, partition: str, ranks: int) -> Workload:
    """Return the workload with as many sub-batches of the same size as workers: at least two, whose sums are kept."""
    size = workload.batch_size // (workload.pipelines * workload.sub_batches)
    sub_batches = max(2, Partition.parse(partition).workers)
    batch_size = size * sub_batches * ranks
    kept = replace(workload, weight_gradients=WEIGHT_GRADIENTS[0], stages=1)
    return replace(kept, partition=partition, ranks=ranks, sub_batches=sub_batches, batch_size=batch_size)


def record_steps(workload: Workload, checkpoint: Path, time_limit: float) -> Recorded:
    """Run a workload's steps in a child process, or under mpirun, and return what they took.

    `RuntimeFailureError` is raised if they have failed, weren't done in time, or had other tasks than their plan.
    """
    arguments = {"workload": workload, "checkpoint": checkpoint}
    with Child(str(workload), _serve_recorded, arguments, ranks=workload.ranks) as child:
        recorded: Recorded = child.start(time_limit).result()
    return recorded


# ---- In the child, or in each rank ----


@contextmanager
def _serve_recorded(
    comm: Comm | None, workload: Workload, checkpoint: Path
) -> Iterator[tuple[Recorded, Callable[[Any], None]]]:
    """Yield what was recorded; there are no requests."""
    steps, trainer = run_measured(workload, checkpoint, comm, trace=True)
    assert steps.trace is not None
    trace, plan = steps.trace, plan_of(trainer.config, workload)
    if not same_tasks(plan.trace, trace):
        raise RuntimeFailureError(f"{workload}: the recorded tasks are other ones than the plan's")
    workers, threads = Partition.parse(workload.partition)
    runtime_ns = runtime_cost(trace, steps.begin_ns, steps.end_ns, workers=workers, ranks=workload.ranks)
    taken = np.where(is_kernel(trace), trace.tasks["end_ns"] - trace.tasks["start_ns"], 0)
    work = work_of(plan.trace, plan.owners, workload.ranks)
    schedule, _ = schedule_of(plan, work, taken.astype(float), runtime_ns, workload, FREE)
    recorded = Recorded(
        configuration=workload,
        measured_seconds=steps.seconds / workload.iterations,
        model_seconds=schedule.makespan * 1e-9 / workload.iterations,
        costs=Measured(f"here with {workload}", mean_durations(trace), threads, runtime_ns),
    )
    yield recorded, lambda _: None


def same_tasks(plan: Trace, trace: Trace) -> bool:
    """Return whether a plan has exactly the recorded tasks, with their ranks, priorities and accesses.

    A trainer of two steps in flight must have submitted an even number of steps before.
    """
    columns = ["operation", "sub_batch", "layer", "rank", "priority", "num_accesses"]
    return (
        plan.handles == trace.handles
        and np.array_equal(plan.tasks[columns], trace.tasks[columns])
        and np.array_equal(plan.accesses, trace.accesses)
    )
