"""Several runs have the same bits: in any place, with delays in their tasks, with shared buffers, after resuming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import BitDifference, compare_bits
from starpullm.checks.result import MAX_LISTED, CheckResult, listed, passed_if
from starpullm.errors import InvalidArgumentError, RuntimeFailureError
from starpullm.trace import Trace

MAX_DELAY_US = 200
"""For perturbed runs: longer than most tasks of the small records, so that delays decide which of them run together."""

Tensors: TypeAlias = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class RunDifference:
    """A tensor of one run whose bits differ from those of another run."""

    run: str
    against: str
    tensor: str
    difference: BitDifference

    def __str__(self) -> str:
        return f"{self.run}, {self.tensor}, compared with {self.against}: " + "; ".join(self.difference.lines())


@dataclass(frozen=True, kw_only=True)
class SameBitsResult(CheckResult):
    """Whether several runs have the bits of the first one; ``compared`` and ``measured`` count tensors.

    ``differences`` lists the first ``MAX_LISTED``.
    """

    unit: str = "tensors"
    runs: tuple[str, ...]
    differences: tuple[RunDifference, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors that differ."""
        yield from listed(self.differences, int(self.measured or 0))


def require_delays(trace: Trace, max_delay_us: int) -> None:
    """Refuse a run whose tasks weren't delayed: its bits show nothing.

    A task's delay is part of its time, and half of the delays are at least half of the longest one.

    Raises
    ------
    RuntimeFailureError
        If fewer than a quarter of the tasks took half of the longest delay.
    """
    tasks = trace.tasks[trace.tasks["worker"] >= 0]
    delayed = int(np.sum(tasks["end_ns"] - tasks["start_ns"] >= max_delay_us * 500))
    if delayed * 4 < len(tasks) or not len(tasks):
        raise RuntimeFailureError(
            f"delays: {delayed} of {len(tasks)} tasks took {max_delay_us / 2:g} µs or longer, expected at least a "
            f"quarter of them with delays of up to {max_delay_us} µs"
        )


def check_same_bits(name: str, runs: Mapping[str, Tensors]) -> SameBitsResult:
    """Compare the tensors of all runs with those of the first one, bit for bit.

    Parameters
    ----------
    name
        What the result is called.
    runs
        The tensors of each run, by a name that says how it ran (repetition, partition, ranks, delays).

    Raises
    ------
    InvalidArgumentError
        If the names, types or shapes of tensors differ.
    """
    (first, expected), *others = runs.items()
    differences = []
    for run, tensors in others:
        if set(tensors) != set(expected):
            raise InvalidArgumentError(f"{run}: found tensors {sorted(tensors)}, expected {sorted(expected)}")
        for tensor, values in expected.items():
            difference = compare_bits(values, tensors[tensor])
            if difference:
                differences.append(RunDifference(run, first, tensor, difference))
    compared = len(expected) * len(others)
    return SameBitsResult(
        name=name,
        outcome=passed_if(not differences),
        finding=f"{compared} tensors of {len(runs)} runs, {len(differences)} differ from those of {first}",
        compared=compared,
        measured=len(differences),
        runs=tuple(runs),
        differences=tuple(differences[:MAX_LISTED]),
    )
