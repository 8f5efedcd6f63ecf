"""Resident memory that a trainer takes on each rank, and the processes and files that its job leaves.

    python benchmarks/ranks_memory.py [--ranks 4] [--steps 100] [--reduction ordered]

The model has 12 layers and 41,696 parameters, so what grows with the number of ranks shows; each rank has four
sub-batches of one sequence. Prints a line per rank with the MiB that the trainer added to the process, and the open
files, after 10 steps, half of the steps and all.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.model import ModelConfig
from starpullm.options import REDUCTIONS
from starpullm.processes import ranks
from starpullm.processes.endings import Job
from starpullm.processes.job import run_job
from starpullm.processes.progress import report_phase

MODEL = ModelConfig(max_seq_len=16, vocab_size=61, num_layers=12, num_heads=2, channels=16, padded_vocab_size=64)
SUB_BATCHES = 4
SEQ_LEN = 8
SHARED_MEMORY = Path("/dev/shm")


def resident() -> float:
    """Return the resident MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def rank(checkpoint: Path, steps: int, reduction: str) -> None:
    """Train as one rank of the job, and print what the trainer took of this rank's memory, and its open files."""
    comm = ranks.world()
    options: dict[str, Any] = {"batch_size": SUB_BATCHES, "seq_len": SEQ_LEN, "sub_batches": SUB_BATCHES}
    with ranks.guarded(comm), Runtime(comm=comm) as runtime:
        before = resident()
        with Trainer(runtime, checkpoint, reduction=reduction, **options) as trainer, ranks.guarded(comm):
            for step in range(1, steps + 1):
                loss = trainer.submit(
                    *generate_tokens(comm.Get_rank() + 1, step, SUB_BATCHES, SEQ_LEN, MODEL.vocab_size)
                )
                if step in (10, steps // 2, steps):
                    float(loss)
                    trainer.wait()
                    gc.collect()
                    report_phase("measuring", step)
                    files = len(list(Path("/proc/self/fd").iterdir()))
                    print(f"step {step}: {resident() - before:.2f} MiB, {files} files")


def main() -> None:
    """Run the job and print the output of its ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--reduction", choices=REDUCTIONS, default="ordered")
    parser.add_argument("--time-limit", type=float, default=600)
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank(options.rank_of, options.steps, options.reduction)
        return
    before = set(SHARED_MEMORY.iterdir())
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory, "model.bin")
        generate_checkpoint(checkpoint, MODEL, 1)
        own = ["--steps", str(options.steps), "--reduction", options.reduction]
        command = [sys.executable, __file__, "--rank-of", str(checkpoint), *own]
        outcome = run_job(Job(command, options.time_limit, options.ranks)).completed()
    for report in outcome.reports.values():
        print(f"rank {report.rank}: {'; '.join(report.stdout.splitlines())}")
    print(f"{outcome.seconds:.1f} s; processes left: {len(outcome.left_running)}; ", end="")
    print(f"files left in {SHARED_MEMORY}: {len(set(SHARED_MEMORY.iterdir()) - before)}")


if __name__ == "__main__":
    main()
