"""``starpullm checkpoint new`` and ``show``: makes untrained models, and shows what a checkpoint holds."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import print_json
from starpullm.data.generator import initial_parameters, padded_vocab
from starpullm.files.checkpoint import Checkpoint, checkpoint_config, write_checkpoint
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes


@click.group("checkpoint")
def command() -> None:
    """Make and show checkpoints of models."""


@command.command(
    "new",
    epilog=options.example(
        "starpullm checkpoint new --layers 2 --heads 2 --channels 48 --vocab 257 --max-seq-len 64 model.bin"
    ),
)
@options.layers
@options.heads
@options.channels
@click.option("--vocab", "vocab_size", type=int, required=True, metavar="V", help="Number of tokens in the vocabulary.")
@options.padded_vocab
@click.option("--max-seq-len", type=int, required=True, metavar="maxT", help="Tokens of the longest sequence.")
@click.option("--seed", type=click.IntRange(min=0), default=42, help="Seed of the random parameters.")
@click.argument("out", type=options.PATH)
def checkpoint_new(vocab_size: int, padded_vocab_size: int | None, seed: int, out: Path, **sizes: int) -> None:
    """Write an untrained model, initialised as GPT-2 is, to the file OUT."""
    if padded_vocab_size is None:
        padded_vocab_size = padded_vocab(vocab_size)
    config = ModelConfig(vocab_size=vocab_size, padded_vocab_size=padded_vocab_size, **sizes)
    write_checkpoint(out, Checkpoint(config, dict(initial_parameters(config, seed))))
    click.echo(f"{out}: {num_parameters(config)} parameters")


@command.command("show")
@click.argument("file", type=options.PATH)
@options.as_json
def checkpoint_show(file: Path, as_json: bool) -> None:
    """Show the sizes and tensors of the model in FILE."""
    config = checkpoint_config(file)
    names = ("max_seq_len", "vocab_size", "padded_vocab_size", "num_layers", "num_heads", "channels")
    sizes = {**{name: getattr(config, name) for name in names}, "num_parameters": num_parameters(config)}
    shapes = parameter_shapes(config)
    if as_json:
        print_json({**sizes, "tensors": {name: list(shape) for name, shape in shapes.items()}})
        return
    for name, value in sizes.items():
        click.echo(f"{name}: {value}")
    for name, shape in shapes.items():
        click.echo(f"{name}: {' x '.join(map(str, shape))}")
