"""Whether the bits of several runs keep what their reduction mode promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import BitDifference, compare_bits
from starpullm.checks.reduction.gradient_error import TensorError, gradient_error
from starpullm.checks.reference64 import GradientReference
from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError

__all__ = ["PROMISES", "BitStabilityResult", "Promise", "RunDifference", "check_bit_stability"]

MAX_LISTED = 20
"""At most this many differences are shown."""

Tensors: TypeAlias = Mapping[str, NDArray[np.float32]]


class Promise(Enum):
    """What a reduction mode promises about the bits of its sums; the strongest promise first."""

    BITWISE = "bitwise"  # those of the golden run
    FIXED_BITS = "fixed bits"  # the same in every run, on any partition and number of ranks
    BOUNDED = "bounded"  # within the bound of a sum in any order


PROMISES: Mapping[str, Promise] = {
    "ordered": Promise.BITWISE,
    "tree": Promise.FIXED_BITS,
    "redux": Promise.BOUNDED,
}
"""The promise of each reduction mode of ``Trainer``."""


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
class BitStabilityResult(CheckResult):
    """Whether the bits of several runs keep a promise, and the strongest promise that these runs keep.

    For ``bounded``, ``measured`` is the largest error ÷ limit and ``limit`` is 1; otherwise ``measured`` is the number
    of tensors that differ and ``limit`` is 0. ``differences`` are those from the golden run or, without one, from the
    first run; for ``bounded`` they aren't failures. ``errors`` has the worst tensor of each run, if there are
    references.
    """

    promise: Promise
    kept: Promise | None
    runs: tuple[str, ...]
    num_tensors: int
    differences: tuple[RunDifference, ...]
    errors: tuple[TensorError, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        kept = self.kept.value if self.kept else "no promise that was checked"
        yield f"{len(self.runs)} runs of {self.num_tensors} tensors; kept: {kept}"
        yield from map(str, self.differences[:MAX_LISTED])
        if len(self.differences) > MAX_LISTED:
            yield f"… and {len(self.differences) - MAX_LISTED} more"
        yield from map(str, self.errors)


def check_bit_stability(
    runs: Mapping[str, Tensors],
    promise: Promise,
    *,
    golden: Tensors | None = None,
    references: Mapping[str, GradientReference] | None = None,
) -> BitStabilityResult:
    """Compare the bits of the same tensors in several runs with a promise.

    Parameters
    ----------
    runs
        The tensors of each run, by a name that says how it ran (repetition, partition, ranks).
    promise
        What is checked.
    golden
        The tensors that ``BITWISE`` expects; without them its outcome is ``NOT_COMPARABLE``.
    references
        The tensors' references for ``BOUNDED``; without them its outcome is ``NOT_COMPARABLE``.

    Raises
    ------
    InvalidArgumentError
        If there are no runs or no tensors, or their names or shapes differ.
    """
    names = list(golden if golden is not None else next(iter(runs.values()), {}))
    if not names:
        raise InvalidArgumentError("runs: found no tensor, expected at least one")
    for label, tensors in chain(runs.items(), [("references", references)] if references is not None else []):
        if set(tensors) != set(names):
            raise InvalidArgumentError(f"{label}: found tensors {sorted(tensors)}, expected {sorted(names)}")

    first = next(iter(runs))
    from_first = _differences(runs, first, runs[first])
    differences = from_first if golden is None else _differences(runs, "golden", golden)
    errors = [_worst_error(label, tensors, references) for label, tensors in runs.items()] if references else []
    held = {
        Promise.BITWISE: golden is not None and not differences,
        Promise.FIXED_BITS: not from_first and len(runs) > 1,
        Promise.BOUNDED: bool(errors) and all(error.ratio <= 1 for error in errors),
    }
    worst = max((error.ratio for error in errors), default=np.nan)
    obstacle = _obstacle(promise, runs, golden, references)
    if obstacle:
        outcome, finding = obstacle
    else:
        outcome = Outcome.PASSED if held[promise] else Outcome.FAILED
        finding = f"{len(differences)} of {len(names) * len(runs)} tensors differ"
        if promise is Promise.BOUNDED:
            finding = f"the largest error is {worst:.3g} of its limit"
    measured = worst if promise is Promise.BOUNDED else len(differences)
    return BitStabilityResult(
        name="bit stability",
        outcome=outcome,
        finding=f"{promise.value}: {finding}",
        measured=None if outcome is Outcome.NOT_COMPARABLE else measured,
        limit=1 if promise is Promise.BOUNDED else 0,
        promise=promise,
        kept=next((candidate for candidate in Promise if held[candidate]), None),
        runs=tuple(runs),
        num_tensors=len(names),
        differences=tuple(differences),
        errors=tuple(errors),
    )


def _obstacle(
    promise: Promise, runs: Mapping[str, Tensors], golden: Tensors | None, references: object
) -> tuple[Outcome, str] | None:
    """Return outcome and finding if the promise can't be checked with what is given."""
    if promise is Promise.BITWISE and golden is None:
        return Outcome.NOT_COMPARABLE, "there is no golden run"
    if promise is Promise.BOUNDED and references is None:
        return Outcome.NOT_COMPARABLE, "there are no references"
    if promise is Promise.FIXED_BITS and len(runs) < 2:
        return Outcome.INCONCLUSIVE, "one run shows nothing about others"
    return None


def _differences(runs: Mapping[str, Tensors], against: str, expected: Tensors) -> list[RunDifference]:
    differences = []
    for run, tensors in runs.items():
        for name, values in expected.items():
            found = tensors[name]
            if found.shape != values.shape or not found.dtype == values.dtype == np.float32:
                raise InvalidArgumentError(
                    f"{run}, {name}: found {found.dtype} {found.shape}, expected float32 {values.shape} as {against}"
                )
            difference = compare_bits(values, found)
            if difference:
                differences.append(RunDifference(run, against, name, difference))
    return differences


def _worst_error(run: str, tensors: Tensors, references: Mapping[str, GradientReference]) -> TensorError:
    errors = (gradient_error(f"{run}, {name}", tensors[name], reference) for name, reference in references.items())
    return max(errors, key=lambda error: error.ratio)
