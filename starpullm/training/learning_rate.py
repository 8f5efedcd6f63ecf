"""The learning rate of each step: constant, or falling as a cosine, after a linear warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starpullm.errors import InvalidArgumentError
from starpullm.options import index_of_choice

LEARNING_RATE_SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class LearningRateSchedule:
    """The learning rates of a run, those of llm.c's GPU trainer (``llmc/schedulers.h``).

    In the first W steps the rate rises linearly, in step W to ``learning_rate``. Then it stays, or falls as half a
    cosine that would reach 0 in the step after the last; this is llm.c's cosine with a final fraction of 0. Rates are
    computed in binary64, in llm.c in binary32. `InvalidArgumentError` is raised if there is no such kind, or W is
    negative or beyond the last step.
    """

    kind: str
    """One of ``LEARNING_RATE_SCHEDULES``."""
    learning_rate: float
    """The highest rate."""
    warm_up_steps: int
    """W; 0: no warm-up."""
    num_steps: int
    """The number of the run's last step."""

    def __post_init__(self) -> None:
        index_of_choice("schedule", self.kind, LEARNING_RATE_SCHEDULES)
        if not 0 <= self.warm_up_steps <= self.num_steps:
            raise InvalidArgumentError(
                f"warm-up steps: found {self.warm_up_steps}, expected 0 to {self.num_steps}, the number of steps"
            )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; steps are numbered from 1."""
        done = step - 1
        if done < self.warm_up_steps:
            return self.learning_rate * step / self.warm_up_steps
        if self.kind == "constant":
            return self.learning_rate
        part = (done - self.warm_up_steps) / (self.num_steps - self.warm_up_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * part))
