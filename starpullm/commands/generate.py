"""``starpullm generate``: continues a text with a trained model."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import progress_bar
from starpullm.errors import InvalidArgumentError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer
from starpullm.training.generate import encoding_for, generate


@click.command(
    "generate", epilog=options.example("starpullm generate --checkpoint trained.bin --prompt 'Shall I' --seed 7")
)
@click.option("--checkpoint", type=options.PATH, required=True, help="Checkpoint of the model.")
@click.option("--prompt", default="", show_default="none: begin a text", help="Text to continue.")
@click.option("--tokenizer", type=options.PATH, help="llm.c's gpt2_tokenizer.bin, for a model with GPT-2's vocabulary.")
@click.option("--num-tokens", type=click.IntRange(min=1), default=64, help="Tokens to sample.")
@click.option("--seed", type=click.IntRange(min=1), default=1337, help="Seed of the sampling; llm.c uses 1337.")
@options.partition
@options.scheduler
def command(
    checkpoint: Path,
    prompt: str,
    tokenizer: Path | None,
    num_tokens: int,
    seed: int,
    partition: str,
    scheduler: str,
) -> None:
    """Continue a text; tokens are sampled as in llm.c."""
    config = checkpoint_config(checkpoint)
    encoding = encoding_for(config, tokenizer)
    prompt_ids = encoding.encode(prompt).tolist()
    seq_len = len(prompt_ids) + num_tokens
    if seq_len > config.max_seq_len:
        raise InvalidArgumentError(
            f"found {len(prompt_ids)} tokens of prompt and {num_tokens} to sample, expected at most "
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
