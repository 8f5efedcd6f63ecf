"""The training loop. It reads a loss only after further steps were submitted, so that workers never wait for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from starpullm.data.loader import TokenLoader
from starpullm.errors import NotFiniteError
from starpullm.loss import Loss
from starpullm.processes.progress import report_phase
from starpullm.trainer import Trainer


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step whose loss has arrived: its number from 1, and its mean loss in nats per token.

    ``tokens_per_ms`` is the speed since the start; ``seconds_left`` is what the remaining steps take at that speed.
    """

    step: int
    loss: np.float32
    tokens_per_ms: float
    seconds_left: float


def train(
    trainer: Trainer,
    tokens: TokenLoader,
    num_steps: int,
    ahead: int = 2,
    *,
    first_step: int = 1,
    learning_rate: Callable[[int], float] | None = None,
    saved_steps: Container[int] = (),
) -> Iterator[StepReport]:
    """Train and yield a report for each finished step, in order.

    Over ranks all ranks must call it, each with its own part of the batches; reports count the tokens of all ranks.

    The loss of a step is read when ``ahead`` further steps have been submitted. Steps are numbered from 1:
    ``first_step`` is more than 1 in a run that is resumed, and ``num_steps`` is the last. ``learning_rate`` returns the
    rate of a step (see ``Schedule.rate``); None: that of the trainer. When one of ``saved_steps`` is reported, no later
    one has been submitted: the caller may save its state.
    """
    start = time.perf_counter()
    tokens_per_step = trainer.pipelines * trainer.batch_size * trainer.seq_len
    waiting: deque[Loss] = deque()
    done = first_step - 1

    def finished(ahead: int) -> Iterator[StepReport]:
        nonlocal done
        while len(waiting) > ahead:
            loss = waiting.popleft().result()
            done += 1
            seconds = (time.perf_counter() - start) / (done - first_step + 1)
            yield StepReport(done, loss, tokens_per_step / (seconds * 1e3), (num_steps - done) * seconds)

    for step in range(first_step, num_steps + 1):
        report_phase(f"reading the batch of step {step}")
        batch = tokens.next()
        waiting.append(trainer.submit(*batch, learning_rate=learning_rate(step) if learning_rate else None))
        yield from finished(0 if step in saved_steps else ahead)
    yield from finished(0)


def check_finite(what: str, values: ArrayLike) -> None:
    """Raise `NotFiniteError` if a number is NaN or infinite."""
    numbers = np.ravel(values)
    wrong = numbers[~np.isfinite(numbers)]
    if wrong.size:
        raise NotFiniteError(f"{what}: found {wrong[0]}, expected a finite number")


def mean_loss(trainer: Trainer, tokens: TokenLoader, num_batches: int) -> float:
    """Return the mean loss of the first ``num_batches`` batches, in nats per token."""
    tokens.reset()
    losses = [float(trainer.evaluate(*tokens.next())) for _ in range(num_batches)]
    return sum(losses) / len(losses)
