"""``starpullm checkpoint new`` and ``show``: makes untrained models, and shows what a checkpoint holds."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, fields, replace
from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import print_json
from starpullm.data.generator import initial_checkpoint
from starpullm.data.models import MODELS
from starpullm.errors import FileError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.model import ModelConfig, num_parameters, padded_vocab, parameter_shapes


@click.group("checkpoint")
def command() -> None:
    """Make and show checkpoints of models."""


@command.command(
    "new",
    epilog=options.example(
        "starpullm checkpoint new --config gpt2 model.bin",
        "starpullm checkpoint new --config gpt2 --max-seq-len 256 model.bin",
        "starpullm checkpoint new --layers 2 --heads 2 --channels 48 --vocab 257 --max-seq-len 64 model.bin",
    ),
)
@click.option(
    "--config",
    "name",
    type=click.Choice(list(MODELS)),
    help="Sizes of a model with this name; the options below replace some of them. llm.c calls gpt2 to gpt2-xl d12, "
    "d24, d36 and d48.",
)
@options.model_sizes(otherwise="that of --config, or ")
@click.option("--seed", type=click.IntRange(min=0), default=42, help="Seed of the random parameters.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.argument("out", type=options.PATH)
def checkpoint_new(name: str | None, seed: int, force: bool, out: Path, **sizes: int | None) -> None:
    """Write an untrained model, initialised as GPT-2 is, to the file OUT.

    Its sizes are those of --config, or all of them are given. A file of that name is replaced only with --force.
    """
    if os.path.lexists(out) and not out.is_dir() and not force:
        raise FileError(f"{out}: exists already, expected a new file, or --force to replace it", errno.EEXIST, str(out))
    config = _config(name, {size: value for size, value in sizes.items() if value is not None})
    initial_checkpoint(out, config, seed)
    click.echo(f"{out}: {num_parameters(config)} parameters")


def _config(name: str | None, sizes: dict[str, int]) -> ModelConfig:
    """Return the sizes of a named model with some of them replaced, or of a model without a name."""
    if "vocab_size" in sizes and "padded_vocab_size" not in sizes:
        sizes["padded_vocab_size"] = padded_vocab(sizes["vocab_size"])
    if name is not None:
        return replace(MODELS[name], **sizes)
    options_of = {option.name: option.opts[0] for option in checkpoint_new.params}
    missing = [name for name in (field.name for field in fields(ModelConfig)) if name not in sizes]
    if missing:
        names = [options_of[name] for name in missing if name != "padded_vocab_size"]
        raise click.UsageError(f"expected --config, or all sizes: {', '.join(names)} missing")
    return ModelConfig(**sizes)


@command.command("show", epilog=options.example("starpullm checkpoint show model.bin"))
@click.argument("file", type=options.PATH)
@options.as_json
def checkpoint_show(file: Path, as_json: bool) -> None:
    """Show the sizes and tensors of the model in FILE."""
    config = checkpoint_config(file)
    sizes = {**asdict(config), "num_parameters": num_parameters(config)}
    shapes = parameter_shapes(config)
    if as_json:
        print_json({**sizes, "tensors": {name: list(shape) for name, shape in shapes.items()}})
        return
    for name, value in sizes.items():
        click.echo(f"{name}: {value}")
    for name, shape in shapes.items():
        click.echo(f"{name}: {' x '.join(map(str, shape))}")
