"""The program of ranks in test_transfers.py: trains, and writes its trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from starpullm import Runtime
from starpullm.checks.placement import own_sequences
from starpullm.checks.references import record_trainer
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import shipped_record
from starpullm.processes import ranks
from starpullm.processes.progress import report_phase


def main(name: str, checkpoint: str, sub_batches: str, reduction: str, steps: str, out: str) -> None:
    """Train a shipped record's model; rank 0 writes the submitted tasks and the handles as JSON."""
    report_phase("start")
    comm = ranks.world()
    record = shipped_record(name)
    with (
        ranks.guarded(comm),
        Runtime(comm=comm) as runtime,
        record_trainer(
            runtime,
            record,
            Path(checkpoint),
            sub_batches=int(sub_batches),
            reduction=reduction,
            keep_activations=False,
            trace=True,
        ) as trainer,
        ranks.guarded(comm),
    ):
        own = own_sequences(runtime, record.batch_size, "the")
        for step in range(int(steps)):
            inputs, targets = generate_tokens(
                record.seed, step, record.batch_size, record.seq_len, record.model.vocab_size
            )
            trainer.submit(inputs[own], targets[own])
        trace = trainer.trace()
        if comm.Get_rank() == 0:
            tasks = [
                [task.operation, task.rank, [[access.handle.id, access.mode] for access in task.accesses]]
                for task in trace
            ]
            handles = [[handle.name, handle.bytes] for handle in trace.handles]
            Path(out).write_text(json.dumps({"tasks": tasks, "handles": handles}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
