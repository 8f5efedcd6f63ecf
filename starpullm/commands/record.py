"""``starpullm record``: makes a golden record of the user's own sizes with a live llm.c."""

from __future__ import annotations

from pathlib import Path

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
def command(
    llmc_library: Path,
    vocab_size: int,
    padded_vocab_size: int | None,
    max_seq_len: int | None,
    batch_size: int,
    seq_len: int,
    steps: int,
    seed: int,
    out: Path,
    learning_rate: float,
    weight_decay: float,
    **sizes: int,
) -> None:
    """Make a golden record of your own sizes with llm.c itself.

    `parity` and the validation suite can compare with OUT.json as with a shipped record. llm.c first trains two shipped
    records. It is refused if its bits are not theirs, and then nothing is written. llm.c runs in one process, so this
    command is refused under mpirun with several ranks.
    """
    refuse_ranks("llm.c trains in one process")
    check_positive(batch_size=batch_size, seq_len=seq_len, steps=steps)
    model = ModelConfig(
        max_seq_len=seq_len if max_seq_len is None else max_seq_len,
        vocab_size=vocab_size,
        padded_vocab_size=padded_vocab(vocab_size) if padded_vocab_size is None else padded_vocab_size,
        **sizes,
    )
    if seq_len > model.max_seq_len:
        raise InvalidArgumentError(f"seq_len: found {seq_len}, expected at most max_seq_len = {model.max_seq_len}")
    settings = {"learning_rate": learning_rate, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": weight_decay}
    record = make_record(
        llmc_library,
        out,
        model=model,
        seed=seed,
        batch_size=batch_size,
        seq_len=seq_len,
        num_steps=steps,
        settings=settings,
    )
    tensors = sum(len(digests) for step in record.steps for digests in step.digests.values())
    click.echo(f"{out}: {tensors} tensors over {record.num_steps} steps")
