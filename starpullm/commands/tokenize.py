"""``starpullm tokenize``: a text file's tokens."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands.options import PATH
from starpullm.data.text import text_encoding
from starpullm.errors import (
    FileError,
    FormatError,
)
from starpullm.files.tokens import write_tokens

__all__ = ["tokenize"]


@click.command()
@click.argument("text", type=PATH)
@click.argument("out", type=PATH)
@click.option("--tokenizer", type=PATH, help="llm.c's gpt2_tokenizer.bin.")
def tokenize(text: Path, out: Path, tokenizer: Path | None) -> None:
    """Write a text file's tokens: GPT-2's where its vocabulary is there, else bytes."""
    encoding = text_encoding(tokenizer)
    try:
        content = text.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{text}: can't be read: {error.strerror}", error.errno) from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{text}: byte {error.start}: expected UTF-8 text, found {error.reason}") from error
    ids = encoding.encode(content)
    write_tokens(out, ids)
    click.echo(f"{out}: {ids.size} tokens, {encoding.name}, vocabulary {encoding.vocab_size}")
