"""``starpullm convert``: between llm.c's checkpoints and GPT-2 models in Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands import options
from starpullm.files.conversion import from_hugging_face, is_hugging_face, to_hugging_face
from starpullm.files.model import num_parameters


@click.command(
    "convert",
    epilog=options.example("starpullm convert gpt2-folder model.bin", "starpullm convert trained.bin trained-folder"),
)
@click.argument("source", type=options.PATH)
@click.argument("out", type=options.PATH)
@options.padded_vocab("V rounded up to a multiple of 128, as in llm.c", "Number of rows of wte in a checkpoint.")
def command(source: Path, out: Path, padded_vocab_size: int | None) -> None:
    """Convert a model between llm.c's and Hugging Face's formats.

    If SOURCE is a checkpoint of llm.c, OUT is a new folder with config.json and model.safetensors. If SOURCE is such a
    folder, or a safetensors or index file with config.json beside it, OUT is a checkpoint.

    The values keep their bits; float16 and bfloat16 become float32, which holds them exactly. A model that llm.c
    doesn't compute is refused.
    """
    if is_hugging_face(source):
        done = from_hugging_face(source, out, padded_vocab_size=padded_vocab_size)
    elif padded_vocab_size is not None:
        raise click.UsageError("--padded-vocab: expected a model in Hugging Face's layout with it")
    else:
        done = to_hugging_face(source, out)
    click.echo(f"{out}: {num_parameters(done.config)} parameters")
    if done.dropped_rows:
        click.echo(f"note: {done.dropped_rows} padding rows of wte had values, which no token uses; they are left out")
