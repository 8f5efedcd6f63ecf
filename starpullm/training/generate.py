"""Text generation: a model samples tokens as llm.c does, and the encoding that goes with its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from starpullm.data.sampling import XorShift, sample
from starpullm.data.text import TextEncoding, byte_encoding, gpt2_encoding
from starpullm.errors import InvalidArgumentError
from starpullm.files.header import StrPath
from starpullm.files.model import ModelConfig
from starpullm.trainer import Trainer

__all__ = ["encoding_for", "generate"]


def encoding_for(config: ModelConfig, tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return the encoding whose vocabulary a model has: bytes for V = 257, else GPT-2's.

    Raises
    ------
    InvalidArgumentError
        If the model's vocabulary is of another size.
    FileError, FormatError, MissingDependencyError
        If it needs GPT-2's vocabulary and that can't be had.
    """
    encoding = byte_encoding()
    if config.vocab_size != encoding.vocab_size:
        encoding = gpt2_encoding(tokenizer_file)
    if config.vocab_size != encoding.vocab_size:
        raise InvalidArgumentError(
            f"text: the model has {config.vocab_size} tokens, expected {byte_encoding().vocab_size} (bytes) or "
            f"{encoding.vocab_size} ({encoding.name})"
        )
    return encoding


def generate(trainer: Trainer, prompt: list[int], end_of_text: int, num_tokens: int, seed: int) -> Iterator[int]:
    """Yield sampled token ids one by one, as llm.c does: after an end of text and the prompt, with its random numbers.

    Parameters
    ----------
    trainer
        A model with batch size 1 and room for 1 + prompt + num_tokens - 1 tokens in its sequence length.
    prompt
        Token ids.
    end_of_text
        Id that the sequence begins and is filled with.
    num_tokens
        How many to sample.
    seed
        State of the xorshift generator; llm.c's is 1337.

    Raises
    ------
    InvalidArgumentError
        If the sequence length is too short.
    """
    known = [end_of_text, *prompt]
    needed = len(known) + num_tokens - 1
    if needed > trainer.seq_len:
        raise InvalidArgumentError(f"seq_len: found {trainer.seq_len}, expected at least {needed} for these tokens")
    random = XorShift(seed)
    sequence = np.full((1, trainer.seq_len), end_of_text, np.int32)
    sequence[0, : len(known)] = known
    for position in range(len(known) - 1, needed):
        probabilities = trainer.probabilities(sequence, 0, position)
        token = sample(probabilities, random.random_f32())
        if position + 1 < trainer.seq_len:
            sequence[0, position + 1] = token
        yield token
