"""Contributions that show, by powers of two, whether a sum contains each of them exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.reduction.gradient_error import Multiplicity
from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError

__all__ = ["ExactlyOnceResult", "Probe", "check_exactly_once", "power_of_two_probe"]

_BASE = 4
_DIGITS = 12
"""Digits in base 4 of a number with 24 bits, the precision of binary32."""


@dataclass(frozen=True, eq=False)
class Probe:
    """K contributions, and what each of them adds to each of P sums: ``weights`` (K, P), binary32."""

    names: tuple[str, ...]
    weights: NDArray[np.float32]


def power_of_two_probe(names: Sequence[str]) -> Probe:
    """Return a probe whose sums show how many times they contain each contribution, in whatever order they were added.

    Up to twelve contributions share two sums. To one they add 1, 4, 16, …, 4^11, to the other the same numbers in
    reverse order. If no contribution is contained more than three times, a sum is exact in binary32, and its digits in
    base 4 are these counts. One sum alone isn't enough: the first contribution five times and the second not at all
    make the same sum as both once. Two sums are enough for all counts. Proof: let i be the first contribution whose
    count isn't 1. In the first sum all later ones are multiples of 4^(i+1), so i is contained 4, 8, … times too often.
    In the other sum i has the largest weight of all whose count isn't 1, and the others together weigh less than that.

    Raises
    ------
    InvalidArgumentError
        If there are no names, or two are equal.
    """
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError("names of contributions: expected at least one, and each only once")
    weights = np.zeros((len(names), 2 * -(-len(names) // _DIGITS)), np.float32)
    for start in range(0, len(names), _DIGITS):
        rows = np.arange(start, min(start + _DIGITS, len(names)))
        powers = np.float32(_BASE) ** np.arange(len(rows), dtype=np.float32)
        weights[rows, 2 * (start // _DIGITS)] = powers
        weights[rows, 2 * (start // _DIGITS) + 1] = powers[::-1]
    return Probe(tuple(names), weights)


@dataclass(frozen=True, kw_only=True)
class ExactlyOnceResult(CheckResult):
    """Which contributions a sum doesn't contain exactly once.

    ``measured`` counts them, and the sums that no counts up to three explain; ``undecoded`` describes those sums.
    """

    num_contributions: int
    num_sums: int
    wrong: tuple[Multiplicity, ...]
    undecoded: tuple[str, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield from map(str, self.wrong)
        yield from self.undecoded


def check_exactly_once(values: ArrayLike, probe: Probe, *, unit: float = 1.0) -> ExactlyOnceResult:
    """Decode the sums of a probe. Passed: each of its sums contains each contribution once.

    Parameters
    ----------
    values
        The sums, (P), or (P, M) for M repetitions of the probe.
    probe
        From ``power_of_two_probe``.
    unit
        A power of two by which all contributions were multiplied.

    Raises
    ------
    InvalidArgumentError
        If there aren't P sums, or the unit isn't a power of two.
    """
    num_elements = probe.weights.shape[1]
    sums = np.asarray(values, np.float64)
    if sums.ndim not in (1, 2) or len(sums) != num_elements or not sums.size:
        raise InvalidArgumentError(
            f"values: found shape {sums.shape}, expected ({num_elements}) or ({num_elements}, M)"
        )
    if not (unit > 0 and np.frexp(unit)[0] == 0.5):
        raise InvalidArgumentError(f"unit: found {unit}, expected a power of two")
    sums = sums.reshape(num_elements, -1) / unit
    wrong: dict[Multiplicity, None] = {}
    undecoded: dict[str, None] = {}
    for element in range(0, num_elements, 2):
        for pair in np.unique(sums[element : element + 2], axis=1).T.tolist():
            decoded = [_decoded(pair[i], probe.weights[:, element + i]) for i in range(2)]
            if decoded[0] is None or decoded[0] != decoded[1]:
                group = np.flatnonzero(probe.weights[:, element])
                undecoded[
                    f"{probe.names[group[0]]} to {probe.names[group[-1]]}: sums {pair[0]!r} and {pair[1]!r} (in "
                    f"units), expected {float(probe.weights[:, element].sum())!r} twice"
                ] = None
                continue
            wrong |= {Multiplicity(probe.names[k], n): None for k, n in decoded[0].items() if n != 1}
    bad = len(wrong) + len(undecoded)
    return ExactlyOnceResult(
        name="each contribution once",
        outcome=Outcome.FAILED if bad else Outcome.PASSED,
        finding=f"{len(probe.names)} contributions in {sums.size} sums, {bad} findings",
        measured=bad,
        limit=0,
        num_contributions=len(probe.names),
        num_sums=sums.size,
        wrong=tuple(wrong),
        undecoded=tuple(undecoded),
    )


def _decoded(value: float, weights: NDArray[np.float32]) -> dict[int, int] | None:
    """Return how many times a sum contains each contribution, or None if no counts up to three explain it."""
    if not 0 <= value < 2.0**24 or value != int(value):
        return None
    rest = int(value)
    times = {}
    for k in np.argsort(weights, kind="stable").tolist():
        if weights[k]:
            rest, times[k] = divmod(rest, _BASE)
    return dict(sorted(times.items())) if rest == 0 else None
