"""A run under another scheduler and with random delays in its tasks has the bits of a plain run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import TensorDifference, compare_bits
from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError

__all__ = ["MAX_DELAY_US", "Disturbance", "PerturbationResult", "check_perturbed"]

MAX_DELAY_US = 200
"""Longer than most tasks of the small records, so that delays decide which tasks run at the same time."""

MAX_LISTED = 10
"""At most this many tensors are listed; their count is always complete."""

Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """How a run was disturbed: its tasks were delayed by up to ``max_delay_us``; the seed decides by how much."""

    partition: str
    scheduler: str
    delay_seed: int
    max_delay_us: int

    def __str__(self) -> str:
        return f"{self.partition} {self.scheduler}, delays of up to {self.max_delay_us} µs by seed {self.delay_seed}"


@dataclass(frozen=True, kw_only=True)
class PerturbationResult(CheckResult):
    """Whether a disturbed run has the bits of the plain one; ``measured`` counts tensors that differ.

    ``differences`` lists the first ``MAX_LISTED``, in the order of the tensors.
    """

    disturbance: Disturbance
    num_tensors: int
    differences: tuple[TensorDifference, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors that differ."""
        yield from map(str, self.differences)
        if int(self.measured or 0) > len(self.differences):
            yield f"… and {int(self.measured or 0) - len(self.differences)} more"
        if self.differences:
            yield f"to repeat the delays: {self.disturbance}"


def check_perturbed(disturbance: Disturbance, found: Tensors, plain: Tensors) -> PerturbationResult:
    """Compare a disturbed run's tensors with those of a plain one, bit for bit.

    Equal bits show that nothing depended on when and where the tasks of this run ran; another seed can still fail.

    Parameters
    ----------
    disturbance
        How the run was disturbed.
    found, plain
        The tensors of both runs, by name.

    Raises
    ------
    InvalidArgumentError
        If there are no tensors, or their names or shapes differ.
    """
    if not plain or list(found) != list(plain):
        raise InvalidArgumentError(f"tensors: found {list(found)}, expected {list(plain) or 'at least one'}")
    compared = ((name, compare_bits(plain[name], found[name])) for name in plain)
    differences = [TensorDifference(name, difference) for name, difference in compared if difference]
    return PerturbationResult(
        name="perturbation",
        outcome=Outcome.FAILED if differences else Outcome.PASSED,
        finding=f"{disturbance}: {len(plain)} tensors, {len(differences)} differ from those of the plain run",
        measured=len(differences),
        limit=0,
        disturbance=disturbance,
        num_tensors=len(plain),
        differences=tuple(differences[:MAX_LISTED]),
    )
