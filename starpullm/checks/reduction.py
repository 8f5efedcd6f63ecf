"""What each reduction promises, and the error of every parameter gradient, compared with the bound of its sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.reference64 import GradientReference, ReadTensor, gradient_references
from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig
from starpullm.golden.records import layer_name


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
class Multiplicity:
    """How many times a sum contains a contribution."""

    contribution: str
    times: int

    def __str__(self) -> str:
        return f"{self.contribution} {'is missing' if self.times == 0 else f'is there {self.times} times'}"


@dataclass(frozen=True, slots=True)
class TensorError:
    """The error of one tensor at the element where ``ratio`` = error ÷ limit is largest.

    ``ratio`` is infinite for a value or a reference that isn't finite. ``num_beyond`` is the number of elements whose
    ratio is more than 1, ``num_not_finite`` that of values and ``num_without_reference`` that of references that aren't
    finite. ``is_bounded`` is false if a sum has so many terms that no limit is known. ``explained_by`` lists
    contributions that the sum doesn't contain exactly once, if these numbers explain the error, that is, if with them
    every element is within its limit.
    """

    tensor: str
    num_elements: int
    num_beyond: int
    index: tuple[int, ...]
    actual: float
    expected: float
    error: float
    limit: float
    ratio: float
    num_not_finite: int = 0
    num_without_reference: int = 0
    is_bounded: bool = True
    explained_by: tuple[Multiplicity, ...] = ()

    def __str__(self) -> str:
        line = (
            f"{self.tensor}{list(self.index)}: {self.actual!r}, expected {self.expected!r}: error {self.error:.3e} is "
            f"{self.ratio:.3g} of its limit; {self.num_beyond} of {self.num_elements} elements beyond it"
        )
        return f"{line}; {', '.join(map(str, self.explained_by))}" if self.explained_by else line


@dataclass(frozen=True, kw_only=True)
class GradientErrorResult(CheckResult):
    """The error of every gradient; ``measured`` is the largest error ÷ limit, and ``limit`` is 1.

    ``compared`` counts elements. ``tensors`` are in the order in which gradients are completed.
    """

    unit: str = "elements"
    tensors: tuple[TensorError, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors beyond their limit, or if there are none, the one that is nearest to it."""
        beyond = [tensor for tensor in self.tensors if tensor.num_beyond]
        nearest = max(self.tensors, key=lambda tensor: tensor.ratio, default=None)
        yield from map(str, beyond or ([nearest] if nearest else []))


def gradient_error(
    tensor: str, actual: ArrayLike, reference: GradientReference, explained_by: tuple[Multiplicity, ...] = ()
) -> TensorError:
    """Compare a tensor with its reference, element by element."""
    values = np.asarray(actual, np.float64)
    if values.shape != reference.value.shape or not values.size:
        raise InvalidArgumentError(f"{tensor}: found shape {values.shape}, expected {reference.value.shape}, not empty")
    is_finite, has_reference = np.isfinite(values), np.isfinite(reference.value)
    with np.errstate(invalid="ignore"):
        error = np.abs(values - reference.value)
        limit = np.broadcast_to(reference.limit(), error.shape)
        has_bound = np.isfinite(limit)
        limit = np.where(has_bound, limit, np.inf)
        # A sum of one term without a product is exact: its limit is 0.
        ratio = np.divide(error, limit, out=np.where(error == 0, 0.0, np.inf), where=limit > 0)
    ratio[~(is_finite & has_reference)] = np.inf
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return TensorError(
        tensor=tensor,
        num_elements=values.size,
        num_beyond=int((ratio > 1).sum()),
        index=tuple(map(int, worst)),
        actual=float(values[worst]),
        expected=float(reference.value[worst]),
        error=float(error[worst]),
        limit=float(limit[worst]),
        ratio=float(ratio[worst]),
        num_not_finite=int((~is_finite).sum()),
        num_without_reference=int((~has_reference).sum()),
        is_bounded=bool((has_bound | ~has_reference).all()),
        explained_by=explained_by,
    )


def multiplicities(
    actual: ArrayLike, contributions: Mapping[str, GradientReference]
) -> tuple[Multiplicity, ...] | None:
    """Return how many times a sum contains each contribution, or None if no integers explain every element.

    The numbers are fitted by least squares over all elements and rounded to integers. They are returned only if the
    sum of the contributions, each taken that many times, differs from the actual sum by at most its limit everywhere.
    """
    values, parts = np.asarray(actual, np.float64), list(contributions.values())
    if not all(np.isfinite(of).all() for of in (values, *(part.value for part in parts))):
        return None
    # Gradients are small; without a scale their squares could underflow.
    scale = max((np.abs(part.value).max(initial=0) for part in parts), default=0) or 1.0
    columns = [part.value.reshape(-1) / scale for part in parts]
    products = np.array([[np.vdot(one, other) for other in columns] for one in columns])
    projections = np.array([np.vdot(one, values.reshape(-1) / scale) for one in columns])
    fit = np.linalg.lstsq(products, projections, rcond=None)[0]
    times = np.rint(fit).astype(np.int64)
    if (times < 0).any():
        return None
    most = int(times.max(initial=1))
    counted = GradientReference(
        value=sum((n * part.value for n, part in zip(times, parts, strict=True)), np.zeros(values.shape)),
        magnitude=sum((n * part.magnitude for n, part in zip(times, parts, strict=True)), np.zeros(values.shape)),
        # `most` times the additions of all parts; + 1 for each part, whose first addition was exact only on its own.
        roundings=most * sum((np.asarray(part.roundings) + 1 for part in parts), np.zeros((), np.int64)),
        underflow=most * sum((np.asarray(part.underflow) for part in parts), np.zeros(())),
    )
    if gradient_error("", values, counted).num_beyond:
        return None
    return tuple(Multiplicity(name, int(n)) for name, n in zip(contributions, times, strict=True))


def check_gradients(
    tensor: ReadTensor, config: ModelConfig, inputs: NDArray[np.integer], *, sub_batches: int = 1
) -> GradientErrorResult:
    """Compare every parameter gradient of the last step with its sum in float64; ``reference64`` derives the bound.

    For a gradient beyond its limit the result says which sub-batches it doesn't contain exactly once, if that explains
    the error.

    Parameters
    ----------
    tensor
        ``Trainer.tensor`` of a trainer with ``keep_activations``, after a step.
    config
        The model's sizes.
    inputs
        Input ids of that step (B, T).
    sub_batches
        S, that of the trainer.

    Raises
    ------
    InvalidArgumentError
        If the sub-batches don't divide B.
    """
    batch_size = len(inputs)
    if sub_batches < 1 or batch_size % sub_batches:
        raise InvalidArgumentError(f"sub_batches: found {sub_batches}, expected a divisor of {batch_size}")
    errors = []
    with np.errstate(invalid="ignore"):
        for name, layer, reference in gradient_references(tensor, config, inputs):
            label = layer_name(name, layer)
            actual = tensor("grads", name, layer)
            error = gradient_error(label, actual, reference)
            if error.num_beyond and sub_batches > 1:
                parts = _sub_batch_references(tensor, config, inputs, sub_batches, (name, layer))
                found = multiplicities(actual, parts) or ()
                error = gradient_error(label, actual, reference, tuple(entry for entry in found if entry.times != 1))
            errors.append(error)
    worst = max(error.ratio for error in errors)
    outcome, finding = _judge(errors)
    return GradientErrorResult(
        name="gradient error",
        outcome=outcome,
        finding=finding,
        compared=sum(error.num_elements for error in errors),
        measured=worst,
        limit=1,
        tensors=tuple(errors),
    )


def _judge(errors: Sequence[TensorError]) -> tuple[Outcome, str]:
    """Return the outcome and the finding: what isn't finite is a failure, a sum without a bound isn't."""
    beyond = sum(error.num_beyond > 0 for error in errors)
    finding = f"{len(errors)} gradients, {beyond} beyond their limit"
    if not beyond:
        if all(error.is_bounded for error in errors):
            return Outcome.PASSED, f"{finding}; the largest error is {max(error.ratio for error in errors):.3g} of it"
        return Outcome.INCONCLUSIVE, "so many terms that no bound is known"
    not_finite = sum(error.num_not_finite > 0 for error in errors)
    without_reference = sum(error.num_without_reference > 0 for error in errors)
    if not_finite:
        finding += f"; {not_finite} have values that aren't finite"
    if without_reference:
        finding += f"; {without_reference} have no reference, because the step's activations aren't finite"
    if not not_finite and not without_reference:
        finding += f"; the largest error is {max(error.ratio for error in errors):.3g} of it"
    return Outcome.FAILED, finding


def _sub_batch_references(
    tensor: ReadTensor,
    config: ModelConfig,
    inputs: NDArray[np.integer],
    sub_batches: int,
    wanted: tuple[str, int | None],
) -> dict[str, GradientReference]:
    """Return the contribution of each sub-batch to one gradient, as a reference."""
    size = len(inputs) // sub_batches
    references = {}
    for number in range(sub_batches):
        part = slice(number * size, (number + 1) * size)

        def part_of(group: str, name: str, layer: int | None, part: slice = part) -> NDArray[np.float32]:
            return tensor(group, name, layer)[part]

        references[f"sub-batch {number}"] = next(
            reference
            for name, layer, reference in gradient_references(part_of, config, inputs[part])
            if (name, layer) == wanted
        )
    return references
