"""``starpullm generate``: continues a text."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands.options import PATH, partition_option, scheduler_option
from starpullm.commands.render import progress_bar
from starpullm.errors import (
    InvalidArgumentError,
)
from starpullm.files.checkpoint import checkpoint_config
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer
from starpullm.training.generate import encoding_for, generate

__all__ = ["generate_command"]


@click.command("generate")
@click.option("--checkpoint", type=PATH, required=True, help="Model to sample from.")
@click.option("--prompt", default="", help="Text to continue; empty: from the start of a text.")
@click.option("--tokenizer", type=PATH, help="llm.c's gpt2_tokenizer.bin, for a model with GPT-2's vocabulary.")
@click.option("--num-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens to sample.")
@click.option("--seed", type=click.IntRange(min=1), default=1337, show_default=True, help="llm.c's is 1337.")
@partition_option
@scheduler_option
def generate_command(
    checkpoint: Path,
    prompt: str,
    tokenizer: Path | None,
    num_tokens: int,
    seed: int,
    partition: str,
    scheduler: str,
) -> None:
    """Continue a text, sampling as llm.c does."""
    config = checkpoint_config(checkpoint)
    encoding = encoding_for(config, tokenizer)
    prompt_ids = encoding.encode(prompt).tolist()
    seq_len = len(prompt_ids) + num_tokens
    if seq_len > config.max_seq_len:
        raise InvalidArgumentError(
            f"{len(prompt_ids)} tokens of prompt and {num_tokens} to sample: expected at most "
            f"{config.max_seq_len} together, the model's longest sequence"
        )
    ids: list[int] = []
    with (
        Runtime(partition, scheduler) as runtime,
        Trainer(runtime, checkpoint, batch_size=1, seq_len=seq_len) as trainer,
        progress_bar(hidden=False) as progress,
    ):
        bar = progress.add_task("sampling", total=num_tokens)
        for token in generate(trainer, prompt_ids, encoding.end_of_text, num_tokens, seed):
            ids.append(token)
            progress.advance(bar)
    click.echo(prompt + encoding.decode(ids))
