r"""A step over ranks whose tasks sleep, which needs no core, beside what the model of `predict` says of it.

    HWLOC_SYNTHETIC='core:4 pu:1' mpirun -n 4 --oversubscribe --bind-to none -x HWLOC_SYNTHETIC \
        python benchmarks/sleeping_ranks.py [--workers 4] [--delay 60000] [--scheduler lws]

One rank has any number of workers: HWLOC_SYNTHETIC='core:36 pu:1' mpirun -n 1 … --workers 36 --scheduler prio.
A pipeline: --workers 1 --stages 4 --sub-batches 8 [--schedule zero-bubble]. Prints a line for each reduction and round:
both times, and the share of the busiest rank's workers.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.graph.merge import is_kernel
from starpullm.graph.on_paper import FREE, SCHEDULERS
from starpullm.graph.work import work_of
from starpullm.instruments import Instruments
from starpullm.options import GRADIENT_BUFFERS, SCHEDULES
from starpullm.predict.prediction import plan_of, schedule_of
from starpullm.processes.ranks import world
from starpullm.speed.workload import Workload, make_batches
from starpullm.trace import Trace

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

SIZES = {"max_seq_len": 4, "vocab_size": 61, "num_heads": 2, "channels": 16, "padded_vocab_size": 64}


def measure(runtime: Runtime, comm: Comm, checkpoint: Path, workload: Workload, delay: int) -> Trace:
    """Return one step's trace, with the times of all ranks, which are on one machine and so have one clock."""
    instruments = Instruments(max_delay_us=delay, delay_seed=3)
    with Trainer(runtime, checkpoint, **workload.of_each_rank, trace=True, instruments=instruments) as trainer:
        for batch in make_batches(workload, trainer, 3):
            trainer.wait()
            comm.barrier()
            trainer.clear_trace()
            trainer.step(*batch)
        trace = trainer.trace()
    own = (trace.tasks["worker"] >= 0) & is_kernel(trace)
    tasks = trace.tasks.copy()
    for name in ("start_ns", "end_ns"):
        tasks[name] = sum(comm.allgather(np.where(own, tasks[name], 0)))
    return replace(trace, tasks=tasks)


def main() -> None:
    """Measure each reduction in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--delay", type=int, default=60000, help="most microseconds that a task sleeps")
    parser.add_argument("--scheduler", default="lws")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--schedule", choices=SCHEDULES, default=SCHEDULES[0])
    parser.add_argument("--gradient-buffers", choices=GRADIENT_BUFFERS, default=GRADIENT_BUFFERS[0])
    parser.add_argument("--sub-batches", type=int, help="of each pipeline; default: the workers")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    comm, config = world(), ModelConfig(**SIZES, num_layers=args.layers)
    sub_batches = args.sub_batches or args.workers
    with tempfile.TemporaryDirectory() as folder, Runtime(f"{args.workers}x1", args.scheduler, comm=comm) as runtime:
        checkpoint = Path(folder, "model.bin")
        generate_checkpoint(checkpoint, config, 1)
        for reduction in ("ordered", "tree") * args.rounds:
            workload = Workload(
                model="sleeping",
                batch_size=sub_batches * comm.Get_size() // args.stages,
                seq_len=config.max_seq_len,
                partition=f"{args.workers}x1",
                scheduler=args.scheduler,
                sub_batches=sub_batches,
                reduction=reduction,
                ranks=comm.Get_size(),
                stages=args.stages,
                schedule=args.schedule,
                gradient_buffers=args.gradient_buffers,
            )
            trace = measure(runtime, comm, checkpoint, workload, args.delay)
            if runtime.rank == 0:
                print(line(trace, config, workload), flush=True)


def line(trace: Trace, config: ModelConfig, workload: Workload) -> str:
    """Compare the step with the schedule that the model makes of the same durations."""
    tasks, kernels = trace.tasks, is_kernel(trace)
    measured = int(tasks["end_ns"][kernels].max() - tasks["start_ns"][kernels].min())
    if workload.scheduler not in SCHEDULERS:
        return f"{workload}, {workload.scheduler}: measured {measured * 1e-9:.3f} s"
    plan = plan_of(config, workload)
    slept = np.where(kernels, tasks["end_ns"] - tasks["start_ns"], 0)
    work = work_of(plan.trace, plan.owners, plan.ranks)
    schedule, _ = schedule_of(plan, work, slept.astype(float), 0, workload, FREE)
    model, busiest = schedule.makespan, np.bincount(tasks["rank"], slept).max() / workload.cores
    return (
        f"{workload}, {workload.scheduler}: measured {measured * 1e-9:.3f} s, model {model * 1e-9:.3f} s "
        f"({model / measured - 1:+.1%}); busy {busiest / measured:.3f} and {busiest / model:.3f}"
    )


if __name__ == "__main__":
    main()
