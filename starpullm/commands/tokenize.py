"""``starpullm tokenize``: turns a text file into a token file."""

from __future__ import annotations

from pathlib import Path

import click

from starpullm.commands import options
from starpullm.data.text import text_encoding
from starpullm.errors import FormatError
from starpullm.files.header import file_errors
from starpullm.files.tokens import write_tokens


@click.command("tokenize", epilog=options.example("starpullm tokenize sonnets.txt train.bin"))
@click.argument("text", type=options.PATH)
@click.argument("out", type=options.PATH)
@click.option("--tokenizer", type=options.PATH, help="llm.c's gpt2_tokenizer.bin, for GPT-2's vocabulary.")
def command(text: Path, out: Path, tokenizer: Path | None) -> None:
    """Convert the text file TEXT, in UTF-8, to the token file OUT.

    The tokens are GPT-2's if --tokenizer is given, otherwise bytes.
    """
    encoding = text_encoding(tokenizer)
    try:
        with file_errors(text):
            content = text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{text}: byte {error.start}: expected UTF-8 text, found {error.reason}") from error
    ids = encoding.encode(content)
    write_tokens(out, ids)
    click.echo(f"{out}: {ids.size} tokens, {encoding.name}, vocabulary {encoding.vocab_size}")
