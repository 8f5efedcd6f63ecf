"""Resident memory of each rank in a training of the record `small`, and the processes and files that its job leaves.

    python benchmarks/ranks_memory.py [--ranks 4] [--steps 100]

Prints a line per rank with the resident MiB and open files after 10 steps, half of the steps and all.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from pathlib import Path

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.golden.records import shipped_record
from starpullm.processes import ranks
from starpullm.processes.endings import Job
from starpullm.processes.job import run_job
from starpullm.processes.progress import report_phase

SMALL = shipped_record("small")
SHARED_MEMORY = Path("/dev/shm")


def rank(checkpoint: Path, steps: int) -> None:
    """Train as one rank of the job, and print this rank's memory and open files."""
    comm = ranks.world()
    with ranks.guarded(comm):
        own = SMALL.batch_size // comm.Get_size()
        with (
            Runtime(comm=comm) as runtime,
            Trainer(runtime, checkpoint, batch_size=own, seq_len=SMALL.seq_len) as trainer,
            ranks.guarded(comm),
        ):
            for step in range(1, steps + 1):
                batch = generate_tokens(comm.Get_rank() + 1, step, own, SMALL.seq_len, SMALL.model.vocab_size)
                loss = trainer.submit(*batch)
                if step in (10, steps // 2, steps):
                    float(loss)
                    trainer.wait()
                    gc.collect()
                    report_phase("measuring", step)
                    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                    print(
                        f"step {step}: {resident / 2**20:.2f} MiB, {len(list(Path('/proc/self/fd').iterdir()))} files"
                    )


def main() -> None:
    """Run the job and print the output of its ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--time-limit", type=float, default=600)
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank(options.rank_of, options.steps)
        return
    before = set(SHARED_MEMORY.iterdir())
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory, "small.bin")
        generate_checkpoint(checkpoint, SMALL.model, SMALL.seed)
        command = [sys.executable, __file__, "--rank-of", str(checkpoint), "--steps", str(options.steps)]
        outcome = run_job(Job(command, options.time_limit, options.ranks)).completed()
    for report in outcome.reports.values():
        print(f"rank {report.rank}: {'; '.join(report.stdout.splitlines())}")
    print(f"{outcome.seconds:.1f} s; processes left: {len(outcome.left_running)}; ", end="")
    print(f"files left in {SHARED_MEMORY}: {len(set(SHARED_MEMORY.iterdir()) - before)}")


if __name__ == "__main__":
    main()
