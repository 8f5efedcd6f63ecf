r"""A step over ranks whose tasks sleep, which needs no core, beside what the model of `predict` says of it.

    HWLOC_SYNTHETIC='core:4 pu:1' mpirun -n 4 --oversubscribe --bind-to none -x HWLOC_SYNTHETIC \
        python benchmarks/sleeping_ranks.py [--workers 4] [--delay 60000] [--scheduler lws]

Prints a line for each reduction and round: both times, and the share of the busiest rank's workers.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.model import ModelConfig
from starpullm.instruments import Instruments
from starpullm.predict.graph import work_of
from starpullm.predict.plan import make_plan
from starpullm.predict.schedule import run
from starpullm.processes.ranks import world
from starpullm.trace import Trace
from starpullm.traces.merge import is_kernel

CONFIG = ModelConfig(max_seq_len=4, vocab_size=61, num_layers=2, num_heads=2, channels=16, padded_vocab_size=64)


def measure(runtime: Runtime, checkpoint: Path, reduction: str, workers: int, delay: int) -> Trace:
    """Return one step's trace, with the times of all ranks, which are on one machine and so have one clock."""
    assert runtime.comm
    options: dict[str, Any] = {"batch_size": workers, "seq_len": 4, "sub_batches": workers, "reduction": reduction}
    instruments = Instruments(max_delay_us=delay, delay_seed=3)
    with Trainer(runtime, checkpoint, **options, trace=True, instruments=instruments) as trainer:
        for step in range(3):
            trainer.wait()
            runtime.comm.barrier()
            trainer.clear_trace()
            trainer.step(*generate_tokens(runtime.rank, step, workers, 4, CONFIG.vocab_size))
        trace = trainer.trace()
    own = (trace.tasks["worker"] >= 0) & is_kernel(trace)
    tasks = trace.tasks.copy()
    for name in ("start_ns", "end_ns"):
        tasks[name] = sum(runtime.comm.allgather(np.where(own, tasks[name], 0)))
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
            trace = measure(runtime, checkpoint, reduction, args.workers, args.delay)
            if runtime.rank == 0:
                print(line(trace, comm.Get_size(), reduction, args.workers, args.scheduler), flush=True)


def line(trace: Trace, ranks: int, reduction: str, workers: int, scheduler: str) -> str:
    """Compare the step with the schedule that the model makes of the same durations."""
    plan = make_plan(
        CONFIG, batch_size=workers, seq_len=4, sub_batches=workers, ranks=ranks, reduction=reduction, workers=workers
    )
    work, tasks, kernels = work_of(plan.trace, plan.owners, ranks), trace.tasks, is_kernel(trace)
    is_task = work.source < 0
    durations = np.where(is_task, (tasks["end_ns"] - tasks["start_ns"])[work.task], 0)
    priorities = np.where(is_task, tasks["priority"][work.task], 0).astype(np.int64)
    model = run(work, durations, priorities, workers=workers, scheduler=scheduler).makespan
    measured = int(tasks["end_ns"][kernels].max() - tasks["start_ns"][kernels].min())
    slept = np.bincount(tasks["rank"][kernels], (tasks["end_ns"] - tasks["start_ns"])[kernels]).max() / workers
    return (
        f"{reduction}, {ranks} ranks of {workers}, {scheduler}: measured {measured * 1e-9:.3f} s, model "
        f"{model * 1e-9:.3f} s ({model / measured - 1:+.1%}); busy {slept / measured:.3f} and {slept / model:.3f}"
    )


if __name__ == "__main__":
    main()
