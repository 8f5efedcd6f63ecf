"""``starpullm tokenize``: turns text files into a token file."""

from __future__ import annotations

import errno
from pathlib import Path

import click
import numpy as np

from starpullm.commands import options
from starpullm.data.text import text_encoding
from starpullm.errors import FileError, FormatError
from starpullm.files.header import file_errors
from starpullm.files.kinds import LFS_POINTER, TEXT, expecting, kind_of
from starpullm.files.tokens import write_tokens


@click.command("tokenize", epilog=options.example("starpullm tokenize sonnets.txt train.bin"))
@click.argument("texts", metavar="TEXT...", type=options.PATH, nargs=-1, required=True)
@click.argument("out", type=options.PATH)
@click.option("--tokenizer", type=options.PATH, help="llm.c's gpt2_tokenizer.bin, for GPT-2's vocabulary.")
@click.option("--end-of-text", is_flag=True, help="Begin with the end-of-text token also if there is only one TEXT.")
def command(texts: tuple[Path, ...], out: Path, tokenizer: Path | None, end_of_text: bool) -> None:
    """Convert text files, in UTF-8, to the token file OUT.

    The tokens are GPT-2's if --tokenizer is given, otherwise the bytes of the text. Each of several TEXTs begins with
    the end-of-text token, as in llm.c: that of the tokenizer, GPT-2's 50256, or 256, which is no byte.
    """
    encoding = text_encoding(tokenizer)
    if (kind_of(out) or "").startswith(TEXT):  # the last of several texts, if OUT was forgotten
        raise FileError(f"{out}: found text, expected a new file, or tokens to replace", errno.EEXIST, str(out))
    parts = [encoding.encode(_read(text)) for text in texts]
    if end_of_text or len(texts) > 1:
        parts = [np.insert(part, 0, encoding.end_of_text) for part in parts]
    ids = np.concatenate(parts)
    write_tokens(out, ids)
    click.echo(f"{out}: {ids.size} tokens, {encoding.name}, vocabulary {encoding.vocab_size}")


def _read(text: Path) -> str:
    """Return a file's text; its bytes are kept, carriage returns too."""
    with expecting(TEXT, text), file_errors(text):
        content = text.read_bytes()
        try:
            if not content.startswith(LFS_POINTER):
                return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{text}: byte {error.start}: expected UTF-8 text, found {error.reason}") from error
        raise FormatError(f"{text}: expected the text itself")
