r"""A step over ranks whose tasks sleep, which needs no core, beside what the model of `predict` says of it.

    HWLOC_SYNTHETIC='core:4 pu:1' mpirun -n 4 --oversubscribe --bind-to none -x HWLOC_SYNTHETIC \
        python benchmarks/sleeping_ranks.py [--workers 4] [--delay 60000] [--scheduler lws]

One rank has any number of workers: HWLOC_SYNTHETIC='core:36 pu:1' mpirun -n 1 … --workers 36 --scheduler prio.
Prints a line for each reduction and round: both times, and the share of the busiest rank's workers.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.model import ModelConfig
from starpullm.instruments import Instruments
from starpullm.predict.graph import work_of
from starpullm.predict.prediction import plan_of, schedule_of
from starpullm.predict.schedule import FREE
from starpullm.processes.ranks import world
from starpullm.speed.workload import Workload
from starpullm.trace import Trace
from starpullm.traces.merge import is_kernel

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

CONFIG = ModelConfig(max_seq_len=4, vocab_size=61, num_layers=2, num_heads=2, channels=16, padded_vocab_size=64)


def measure(runtime: Runtime, comm: Comm, checkpoint: Path, workload: Workload, delay: int) -> Trace:
    """Return one step's trace, with the times of all ranks, which are on one machine and so have one clock."""
    instruments = Instruments(max_delay_us=delay, delay_seed=3)
    with Trainer(runtime, checkpoint, **workload.of_each_rank, trace=True, instruments=instruments) as trainer:
        for step in range(3):
            trainer.wait()
            comm.barrier()
            trainer.clear_trace()
            trainer.step(*generate_tokens(runtime.rank, step, trainer.batch_size, trainer.seq_len, CONFIG.vocab_size))
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
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    comm = world()
    with tempfile.TemporaryDirectory() as folder, Runtime(f"{args.workers}x1", args.scheduler, comm=comm) as runtime:
        checkpoint = Path(folder, "model.bin")
        generate_checkpoint(checkpoint, CONFIG, 1)
        for reduction in ("ordered", "tree") * args.rounds:
            workload = Workload(
                model="sleeping",
                batch_size=args.workers * comm.Get_size(),
                seq_len=CONFIG.max_seq_len,
                partition=f"{args.workers}x1",
                scheduler=args.scheduler,
                sub_batches=args.workers,
                reduction=reduction,
                ranks=comm.Get_size(),
            )
            trace = measure(runtime, comm, checkpoint, workload, args.delay)
            if runtime.rank == 0:
                print(line(trace, workload, args.workers), flush=True)


def line(trace: Trace, workload: Workload, workers: int) -> str:
    """Compare the step with the schedule that the model makes of the same durations."""
    plan, tasks, kernels = plan_of(CONFIG, workload), trace.tasks, is_kernel(trace)
    slept = np.where(kernels, tasks["end_ns"] - tasks["start_ns"], 0)
    work = work_of(plan.trace, plan.owners, plan.ranks)
    schedule, _ = schedule_of(plan, work, slept.astype(float), 0, workload, FREE)
    model, busiest = schedule.makespan, np.bincount(tasks["rank"], slept).max() / workers
    measured = int(tasks["end_ns"][kernels].max() - tasks["start_ns"][kernels].min())
    return (
        f"{workload}, {workload.scheduler}: measured {measured * 1e-9:.3f} s, model {model * 1e-9:.3f} s "
        f"({model / measured - 1:+.1%}); busy {busiest / measured:.3f} and {busiest / model:.3f}"
    )


if __name__ == "__main__":
    main()
