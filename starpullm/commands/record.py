"""``starpullm record``: makes a golden record of the user's own sizes with a live llm.c."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from starpullm.checks.recording import make_record
from starpullm.commands import options
from starpullm.commands.main import refuse_ranks
from starpullm.data.sizes import check_positive
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig, padded_vocab


@click.command(
    "record",
    epilog=options.example(
        "starpullm record --llmc-library libllmc.so --layers 2 --heads 2 --channels 48 --batch-size 4 --seq-len 32 "
        "--steps 3 mine.json",
        "starpullm parity mine.json",
    ),
)
@options.llmc_library(required=True, help="llm.c, built as a strict shared object.")
@options.model_sizes(required=True)
@click.option("--vocab", "vocab_size", type=int, default=257, metavar="V", help="Number of tokens in the vocabulary.")
@click.option(
    "--max-seq-len",
    type=int,
    metavar="maxT",
    show_default="the sequence length",
    help="Tokens of the longest sequence.",
)
@click.option("--batch-size", type=int, required=True, metavar="B", help="Sequences of the whole batch.")
@click.option("--seq-len", type=int, required=True, metavar="T", help="Tokens of a sequence.")
@click.option("--steps", type=int, required=True, metavar="N", help="Number of training steps.")
@click.option("--seed", type=click.IntRange(min=0), default=1, help="Number of the generated model.")
@click.option("--learning-rate", type=float, default=1e-4, help="Learning rate of AdamW.")
@click.option("--weight-decay", type=float, default=0.01, help="Weight decay of AdamW.")
@click.argument("out", metavar="OUT.json", type=options.PATH)
def command(llmc_library: Path, out: Path, **values: Any) -> None:
    """Make a golden record of your own sizes with llm.c itself.

    `parity` and the validation suite can compare with OUT.json as with a shipped record. llm.c first trains two shipped
    records. It is refused if its bits are not theirs, and then nothing is written. llm.c runs in one process, so this
    command is refused under mpirun with several ranks.
    """
    refuse_ranks("llm.c trains in one process")
    run = SimpleNamespace(**values)
    check_positive(batch_size=run.batch_size, seq_len=run.seq_len, steps=run.steps)
    model = ModelConfig(
        max_seq_len=run.seq_len if run.max_seq_len is None else run.max_seq_len,
        padded_vocab_size=padded_vocab(run.vocab_size) if run.padded_vocab_size is None else run.padded_vocab_size,
        **{name: getattr(run, name) for name in ("vocab_size", "num_layers", "num_heads", "channels")},
    )
    if run.seq_len > model.max_seq_len:
        raise InvalidArgumentError(f"seq_len: found {run.seq_len}, expected at most max_seq_len = {model.max_seq_len}")
    sizes = {"model": model, "seed": run.seed, "batch_size": run.batch_size, "seq_len": run.seq_len}
    betas = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    settings = {"learning_rate": run.learning_rate, **betas, "weight_decay": run.weight_decay}
    record = make_record(llmc_library, out, **sizes, num_steps=run.steps, settings=settings)
    tensors = sum(len(digests) for step in record.steps for digests in step.digests.values())
    click.echo(f"{out}: {tensors} tensors over {record.num_steps} steps")
