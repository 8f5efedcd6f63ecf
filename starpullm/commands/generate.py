"""``starpullm generate``: continues a text with a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from starpullm.commands import options
from starpullm.commands.main import refuse_ranks
from starpullm.commands.render import progress_bar
from starpullm.training.generate import continue_text


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
def command(checkpoint: Path, prompt: str, num_tokens: int, seed: int, **options: Any) -> None:
    """Continue a text; tokens are sampled as in llm.c."""
    refuse_ranks("a text is sampled in one process")
    with progress_bar(hidden=False) as progress:
        bar = progress.add_task("sampling", total=num_tokens)
        text = continue_text(checkpoint, prompt, num_tokens, seed, progress=lambda: progress.advance(bar), **options)
    click.echo(text, color=True)  # else click takes escape sequences out
