"""``starpullm checkpoint new`` and ``show``."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands.options import PATH, json_option
from starpullm.commands.render import print_json
from starpullm.data.generator import initial_parameters
from starpullm.files.checkpoint import Checkpoint, checkpoint_config, write_checkpoint
from starpullm.files.model import ModelConfig, num_parameters, parameter_shapes

__all__ = ["checkpoint"]


@click.group()
def checkpoint() -> None:
    """Make and show model checkpoints."""


@checkpoint.command("new")
@click.option("--layers", type=int, required=True, help="L")
@click.option("--heads", type=int, required=True, help="NH; divides the channels.")
@click.option("--channels", type=int, required=True, help="C")
@click.option("--vocab", type=int, required=True, help="V")
@click.option("--padded-vocab", type=int, help="Vp; by default V rounded up to a multiple of 128, as llm.c's.")
@click.option("--max-seq-len", type=int, required=True, help="maxT")
@click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True)
@click.argument("out", type=PATH)
def checkpoint_new(
    layers: int,
    heads: int,
    channels: int,
    vocab: int,
    padded_vocab: int | None,
    max_seq_len: int,
    seed: int,
    out: Path,
) -> None:
    """Write an untrained model with GPT-2's usual initialisation."""
    config = ModelConfig(
        max_seq_len=max_seq_len,
        vocab_size=vocab,
        num_layers=layers,
        num_heads=heads,
        channels=channels,
        padded_vocab_size=-(-vocab // 128) * 128 if padded_vocab is None else padded_vocab,
    )
    write_checkpoint(out, Checkpoint(config, dict(initial_parameters(config, seed))))
    click.echo(f"{out}: {num_parameters(config)} parameters")


@checkpoint.command("show")
@click.argument("file", type=PATH)
@json_option
def checkpoint_show(file: Path, as_json: bool) -> None:
    """Show a model's sizes and tensors."""
    config = checkpoint_config(file)
    sizes = {
        "max_seq_len": config.max_seq_len,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": config.padded_vocab_size,
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "channels": config.channels,
        "num_parameters": num_parameters(config),
    }
    if as_json:
        print_json({**sizes, "tensors": {name: list(shape) for name, shape in parameter_shapes(config).items()}})
        return
    for name, value in sizes.items():
        click.echo(f"{name}: {value}")
    for name, shape in parameter_shapes(config).items():
        click.echo(f"{name}: {' x '.join(map(str, shape))}")
