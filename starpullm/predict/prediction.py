"""A prediction: how long a step takes, how busy the workers are, and what the step waits for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import starpullm
from starpullm.files.model import ModelConfig
from starpullm.graph.on_paper import FREE, Network, PaperSchedule, run
from starpullm.graph.waits import waits_of
from starpullm.graph.work import MESSAGE, Work, work_of
from starpullm.predict.costs import Costs
from starpullm.predict.plan import Plan, make_plan
from starpullm.runtime import Partition
from starpullm.speed.workload import Workload
from starpullm.traces.traced_run import RankInfo, TracedRun


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says of ``configuration.iterations`` steps; times are those of one of them, in seconds.

    ``waits`` is what the step waits for, as fractions of it, largest first. The chain that ends last is followed
    backwards: a task counts for the tensor of which it waited for the value or the buffer, or for ``busy workers`` if
    only a worker was missing; a message for ``messages``.
    """

    configuration: Workload
    costs: str
    network: str
    tasks: int
    step_seconds: float
    efficiency: float
    """The kernels' time on the busiest rank by the workers' time."""
    work_seconds: float
    """The kernels' time on the busiest rank by its number of workers: no schedule is faster."""
    path_seconds: float
    """The longest path through tasks and messages: no number of workers is faster."""
    waits: dict[str, float]
    bytes_on_a_rank: int
    """Of the rank with the largest buffers."""


class Predicted(NamedTuple):
    """A prediction and its run on paper."""

    prediction: Prediction
    run: TracedRun


def plan_of(config: ModelConfig, workload: Workload) -> Plan:
    """Return the plan of a workload's steps; errors are those of `make_plan`."""
    workers = Partition.parse(workload.partition).workers
    return make_plan(config, **workload.of_each_rank, ranks=workload.ranks, workers=workers, steps=workload.iterations)


def predict(config: ModelConfig, workload: Workload, costs: Costs, network: Network | None = None) -> Predicted:
    """Predict a workload; without a network messages are free.

    `InvalidArgumentError` is raised if the plan isn't possible, the model doesn't know the scheduler, or the costs
    don't fit the tasks.
    """
    plan = plan_of(config, workload)
    work = work_of(plan.trace, plan.owners, plan.ranks)
    kernels = costs.of_tasks(plan.trace, config, workload)
    schedule, of_nodes = schedule_of(plan, work, kernels, costs.runtime_ns, workload, network or FREE)
    steps, workers = workload.iterations, Partition.parse(workload.partition).workers
    per_step = 1e-9 / steps
    busiest = np.bincount(plan.trace.tasks["rank"], kernels).max() / workers
    latency, bandwidth = network or FREE
    on_the_way = np.where(work.source < 0, 0, latency + work.bytes / bandwidth)
    path, _ = work.order.critical_path(of_nodes + (on_the_way * 1e9).round().astype(np.int64))
    prediction = Prediction(
        configuration=workload,
        costs=str(costs),
        network="free" if network is None else str(network),
        tasks=int((work.source < 0).sum()) // steps,
        step_seconds=schedule.makespan * per_step,
        efficiency=float(busiest / schedule.makespan),
        work_seconds=float(busiest * per_step),
        path_seconds=path * per_step,
        waits=waits_of(plan.trace, work, schedule),
        bytes_on_a_rank=int(plan.bytes_of_ranks().max()),
    )
    return Predicted(prediction, _run_on_paper(plan, work, schedule, config, workload))


def schedule_of(
    plan: Plan, work: Work, kernels: NDArray[np.float64], runtime_ns: float, workload: Workload, network: Network
) -> tuple[PaperSchedule, NDArray[np.int64]]:
    """Return the schedule of a plan whose tasks take so long, and the time of each node on its worker."""
    is_task = work.source < 0
    of_nodes = np.where(is_task, kernels[work.task] + runtime_ns, 0).round().astype(np.int64)
    priorities = np.where(is_task, plan.trace.tasks["priority"][work.task], 0).astype(np.int64)
    workers = Partition.parse(workload.partition).workers
    schedule = run(work, of_nodes, priorities, workers=workers, scheduler=workload.scheduler, network=network)
    return schedule, of_nodes


def _run_on_paper(
    plan: Plan, work: Work, schedule: PaperSchedule, config: ModelConfig, workload: Workload
) -> TracedRun:
    """Return the plan's trace with the times of the schedule."""
    tasks = plan.trace.tasks.copy()
    tasks["submit_ns"] = 0
    nodes = np.flatnonzero(work.task != MESSAGE)
    for name, values in (("start_ns", schedule.start), ("end_ns", schedule.end), ("worker", schedule.worker)):
        tasks[name][work.task[nodes]] = values[nodes]
    settings = {name: getattr(workload, name) for name in ("scheduler", "reduction", "batch_size", "seq_len")}
    settings |= {"matmul": "predicted", "sub_batches": workload.sub_batches * workload.ranks, "model": asdict(config)}
    ranks = tuple(RankInfo("predicted", workload.partition, 0) for _ in range(workload.ranks))
    return TracedRun(replace(plan.trace, tasks=tasks), ranks, settings, 0, f"starpullm {starpullm.__version__} predict")
