"""Text generation: sampling tokens as llm.c does, and the encoding for a model's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from starpullm.data.sampling import XorShift, sample
from starpullm.data.text import TextEncoding, byte_encoding, gpt2_encoding
from starpullm.errors import InvalidArgumentError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.header import StrPath
from starpullm.files.model import ModelConfig
from starpullm.runtime import DEFAULT_SCHEDULER, Runtime
from starpullm.trainer import Trainer
from starpullm.training.loop import check_finite


def encoding_for(config: ModelConfig, tokenizer_file: StrPath | None = None) -> TextEncoding:
    """Return the encoding for a model's vocabulary: bytes for V = 257, otherwise that of a tokenizer's file."""
    encodings = [byte_encoding()]
    if config.vocab_size != encodings[0].vocab_size and tokenizer_file is not None:
        encodings.append(gpt2_encoding(tokenizer_file))
    if config.vocab_size != encodings[-1].vocab_size:
        known = " or ".join(f"{encoding.vocab_size} ({encoding.name})" for encoding in encodings)
        more = "" if tokenizer_file else ", or a tokenizer's file"
        raise InvalidArgumentError(f"text: the model has {config.vocab_size} tokens, expected {known}{more}")
    return encodings[-1]


def generate(trainer: Trainer, prompt: list[int], end_of_text: int, num_tokens: int, seed: int) -> Iterator[int]:
    """Yield sampled token ids as llm.c does: they follow an end-of-text token and the prompt.

    The trainer has batch size 1 and at least len(prompt) + num_tokens positions. ``end_of_text`` stands first, and
    where tokens aren't known yet. ``seed`` is the state of llm.c's random numbers, 1337 in llm.c.
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
        check_finite(f"probabilities of the token after position {position}", probabilities)
        token = sample(probabilities, random.random_f32())
        if position + 1 < trainer.seq_len:
            sequence[0, position + 1] = token
        yield token


def continue_text(
    checkpoint: StrPath,
    prompt: str,
    num_tokens: int,
    seed: int,
    *,
    tokenizer: StrPath | None = None,
    partition: str = "1x1",
    scheduler: str = DEFAULT_SCHEDULER,
    progress: Callable[[], None] = lambda: None,
) -> str:
    """Return a prompt with its continuation by the model of a checkpoint; ``progress`` is called after each token.

    `InvalidArgumentError` is raised if the model has another vocabulary than the text, or a shorter sequence than all
    tokens together.
    """
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
    ):
        for token in generate(trainer, prompt_ids, encoding.end_of_text, num_tokens, seed):
            ids.append(token)
            progress()
    return encoding.decode(prompt_ids + ids)
