"""Measures the training step in turn with the same step by PyTorch, eager and compiled.

Run by hand: ``python benchmarks/peers.py [--model gpt2-124m] [--batch-size 12] [--partition 2x1] [--rounds 6]``. All
train the same model on the same batches, and their losses are compared before their times. Nothing else should be
running.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import click
from torch_gpt2 import serve_compiled, serve_eager

from starpullm.commands.bench import print_comparison
from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.processes.lock import machine_lock
from starpullm.runtime import Partition
from starpullm.speed.against import compare
from starpullm.speed.speed_verdict import NoiseMeter
from starpullm.speed.variant import Variant
from starpullm.speed.workload import Workload

EAGER, COMPILED = "torch eager", "torch compiled"


@click.command()
@click.option("--model", type=click.Choice(SHIPPED_RECORDS), default="gpt2-124m", show_default=True)
@click.option("--batch-size", type=int, help="Default: the record's.")
@click.option("--seq-len", type=int, help="Default: the record's.")
@click.option("--partition", default="2x1", show_default=True, help="PyTorch has as many threads as it has cores.")
@click.option("--rounds", type=int, default=6, show_default=True)
@click.option("--time-limit", type=float, default=1800.0, show_default=True, help="Seconds for each turn.")
def main(
    model: str, batch_size: int | None, seq_len: int | None, partition: str, rounds: int, time_limit: float
) -> None:
    """Print the speeds and their ratios within rounds."""
    record = shipped_record(model)
    workload = Workload(
        model=model,
        batch_size=batch_size or record.batch_size,
        seq_len=seq_len or record.seq_len,
        partition=partition,
        sub_batches=Partition.parse(partition).workers,
        iterations=rounds,
    )
    peers = [Variant(EAGER, serve_eager)]
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        peers.append(Variant(COMPILED, serve_compiled))
    else:
        click.echo(f"{COMPILED}: left out: found no C++ compiler {compiler}, which torch.compile calls")
    with machine_lock(), tempfile.TemporaryDirectory(prefix="starpullm-peers-") as directory:
        noise = NoiseMeter()
        checkpoint = Path(directory, "model.bin")
        generate_checkpoint(checkpoint, record.model, record.seed)
        comparison = compare(workload, checkpoint, peers, time_limit, progress=lambda: None)
    print_comparison(comparison)
    strict = comparison.variants[0].tokens_per_ms
    click.echo(noise.sentence("the strict run's speed", [(strict.low, strict.high)]))


if __name__ == "__main__":
    main()
