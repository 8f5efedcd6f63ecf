"""The training loop and sampling that the command line and the demo share.

Both keep the runtime fed: a step's loss is read only after the next ones have been submitted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from starpullm.data import TextEncoding, TokenLoader, XorShift, byte_encoding, gpt2_encoding, sample
from starpullm.errors import InvalidArgumentError
from starpullm.formats import ModelConfig, StrPath
from starpullm.processes.progress import report_phase
from starpullm.trainer import Loss, Trainer

__all__ = ["StepReport", "encoding_for", "generate", "mean_loss", "train"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step whose loss has arrived: its number from 1, the mean loss, and tokens per millisecond since the start."""

    step: int
    loss: np.float32
    tokens_per_ms: float


def train(
    trainer: Trainer,
    tokens: TokenLoader,
    num_steps: int,
    ahead: int = 2,
    *,
    first_step: int = 1,
    after_submit: Callable[[int], None] | None = None,
) -> Iterator[StepReport]:
    """Train and yield a report per step, in order, as the losses arrive.

    Over ranks every rank calls it with its own part of the batches; the reports count the tokens of all.

    Parameters
    ----------
    trainer, tokens
        The model and its batches, of the same batch size and sequence length.
    num_steps
        Number of the last step.
    ahead
        Steps that are submitted before the loss of the first of them is read.
    first_step
        Number of the first step: more than 1 if others have been done before.
    after_submit
        Called with a step's number when it has been submitted, to save its state for example.
    """
    start = time.perf_counter()
    tokens_per_step = trainer.runtime.ranks * trainer.batch_size * trainer.seq_len
    waiting: deque[Loss] = deque()
    done = first_step - 1

    def report() -> StepReport:
        nonlocal done
        report_phase(f"waiting for the loss of step {done + 1}")
        loss = waiting.popleft().value
        done += 1
        report_phase(f"after step {done}", done)
        seconds = time.perf_counter() - start
        return StepReport(done, loss, (done - first_step + 1) * tokens_per_step / (seconds * 1e3))

    for step in range(first_step, num_steps + 1):
        report_phase(f"reading the batch of step {step}")
        batch = tokens.next()
        report_phase(f"submitting step {step}")
        waiting.append(trainer.submit(*batch))
        if after_submit:
            after_submit(step)
        if len(waiting) > ahead:
            yield report()
    while waiting:
        yield report()


def mean_loss(trainer: Trainer, tokens: TokenLoader, num_batches: int) -> float:
    """Return the mean loss of the first batches of token files, in nats per token."""
    tokens.reset()
    losses = [float(trainer.evaluate(*tokens.next())) for _ in range(num_batches)]
    return sum(losses) / len(losses)


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
