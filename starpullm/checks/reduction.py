"""Reduction: the error of every gradient against its bound, every contribution counted once, and which bits are stable.

Programs call the checks with a trainer's tensors, or with arrays of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.reference64 import GradientReference, ReadTensor, gradient_references
from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.files.model import ModelConfig

__all__ = [
    "PROMISES",
    "BitDifference",
    "BitStabilityResult",
    "ExactlyOnceResult",
    "GradientErrorResult",
    "Multiplicity",
    "Probe",
    "Promise",
    "TensorError",
    "check_bit_stability",
    "check_exactly_once",
    "check_gradients",
    "gradient_error",
    "multiplicities",
    "power_of_two_probe",
]

Floats = NDArray[np.float32]


# ---- Error against a float64 reference ----


@dataclass(frozen=True, slots=True)
class Multiplicity:
    """How often a contribution is in a sum."""

    contribution: str
    times: int

    def __str__(self) -> str:
        return f"{self.contribution} {'is missing' if self.times == 0 else f'is there {self.times} times'}"


@dataclass(frozen=True, slots=True)
class TensorError:
    """The error of one tensor, at the element where it is largest as a part of its limit.

    ``ratio`` is error ÷ limit (infinite for a value that isn't finite); ``num_beyond`` elements have more than 1.
    ``explained_by``: the contributions that aren't in the sum exactly once, if counting them otherwise brings every
    element within its limit.
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
    explained_by: tuple[Multiplicity, ...] = ()

    def __str__(self) -> str:
        line = (
            f"{self.tensor}{list(self.index)}: {self.actual!r}, expected {self.expected!r}: error {self.error:.3e} is "
            f"{self.ratio:.3g} of its limit; {self.num_beyond} of {self.num_elements} elements beyond it"
        )
        return f"{line}; {', '.join(map(str, self.explained_by))}" if self.explained_by else line


@dataclass(frozen=True, kw_only=True)
class GradientErrorResult(CheckResult):
    """The error of every parameter gradient; ``measured`` is the largest error ÷ limit and ``limit`` 1.

    ``tensors`` stand in the order in which gradients are completed.
    """

    tensors: tuple[TensorError, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors beyond their limit, or else the one that comes nearest to it."""
        beyond = [tensor for tensor in self.tensors if tensor.num_beyond]
        nearest = max(self.tensors, key=lambda tensor: tensor.ratio, default=None)
        yield from map(str, beyond or ([nearest] if nearest else []))


def gradient_error(
    tensor: str, actual: ArrayLike, reference: GradientReference, explained_by: tuple[Multiplicity, ...] = ()
) -> TensorError:
    """Compare a tensor with its reference, element by element.

    Raises
    ------
    InvalidArgumentError
        If the shapes differ, or there is no element.
    """
    values = np.asarray(actual, np.float64)
    if values.shape != reference.value.shape or not values.size:
        raise InvalidArgumentError(f"{tensor}: found shape {values.shape}, expected {reference.value.shape}, not empty")
    with np.errstate(invalid="ignore"):
        error = np.abs(values - reference.value)
    limit = np.broadcast_to(reference.limit(), error.shape)
    # What isn't finite is beyond any limit. Where nothing may err (one term, no product) the limit is 0.
    ratio = np.divide(error, limit, out=np.where(error == 0, 0.0, np.inf), where=limit > 0)
    ratio[~np.isfinite(values)] = np.inf
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
        explained_by=explained_by,
    )


def multiplicities(
    actual: ArrayLike, contributions: Mapping[str, GradientReference]
) -> tuple[Multiplicity, ...] | None:
    """Return how often each contribution is in a sum, or None if no whole numbers explain every element.

    The numbers that fit best (least squares over all elements) are rounded to whole ones, and kept only if the sum
    that they make is within its limit of the actual one everywhere.
    """
    values = np.asarray(actual, np.float64)
    if not np.isfinite(values).all():
        return None
    parts = list(contributions.values())
    # All numbers are small: without a scale their squares could underflow.
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
        # A sum of so many times the terms; + 1 each, since the parts' first additions are exact only in the parts.
        roundings=most * sum((np.asarray(part.roundings) + 1 for part in parts), np.zeros((), np.int64)),
        underflow=most * sum((np.asarray(part.underflow) for part in parts), np.zeros(())),
    )
    if gradient_error("", values, counted).num_beyond:
        return None
    return tuple(Multiplicity(name, int(n)) for name, n in zip(contributions, times, strict=True))


def check_gradients(
    tensor: ReadTensor, config: ModelConfig, inputs: NDArray[np.integer], *, sub_batches: int = 1
) -> GradientErrorResult:
    """Compare every parameter gradient of the last step with its sum in float64; see ``reference64`` for the bound.

    A gradient beyond its limit is searched for sub-batches that are missing in it, or there more than once.

    Parameters
    ----------
    tensor
        ``Trainer.tensor`` of a trainer with ``keep_activations``, after a step.
    config
        The model's sizes.
    inputs
        That step's input ids (B, T).
    sub_batches
        S, as the trainer's.

    Raises
    ------
    InvalidArgumentError
        If the sub-batches don't divide B.
    """
    batch_size = len(inputs)
    if sub_batches < 1 or batch_size % sub_batches:
        raise InvalidArgumentError(f"sub_batches: found {sub_batches}, expected a divisor of {batch_size}")
    errors = []
    for name, layer, reference in gradient_references(tensor, config, inputs):
        label = name if layer is None else f"{name}[{layer}]"
        actual = tensor("grads", name, layer)
        error = gradient_error(label, actual, reference)
        if error.num_beyond and sub_batches > 1:
            parts = _sub_batch_references(tensor, config, inputs, sub_batches, (name, layer))
            found = multiplicities(actual, parts) or ()
            error = gradient_error(label, actual, reference, tuple(entry for entry in found if entry.times != 1))
        errors.append(error)
    worst = max(errors, key=lambda error: error.ratio)
    beyond = sum(error.num_beyond > 0 for error in errors)
    if not all(np.isfinite(error.limit) for error in errors):
        outcome, finding = Outcome.INCONCLUSIVE, "so many terms that no bound is known"
    else:
        outcome = Outcome.FAILED if beyond else Outcome.PASSED
        finding = f"{len(errors)} gradients, {beyond} beyond their limit; the largest error is {worst.ratio:.3g} of it"
    return GradientErrorResult(
        name="gradient error", outcome=outcome, finding=finding, measured=worst.ratio, limit=1, tensors=tuple(errors)
    )


def _sub_batch_references(
    tensor: ReadTensor,
    config: ModelConfig,
    inputs: NDArray[np.integer],
    sub_batches: int,
    wanted: tuple[str, int | None],
) -> dict[str, GradientReference]:
    """Return each sub-batch's part of one gradient."""
    size = len(inputs) // sub_batches
    references = {}
    for number in range(sub_batches):
        part = slice(number * size, (number + 1) * size)

        def part_of(group: str, name: str, layer: int | None, part: slice = part) -> Floats:
            return tensor(group, name, layer)[part]

        references[f"sub-batch {number}"] = next(
            reference
            for name, layer, reference in gradient_references(part_of, config, inputs[part])
            if (name, layer) == wanted
        )
    return references


# ---- Every contribution exactly once ----

_BASE = 4
_DIGITS = 12
"""24 bits, the precision of binary32, in base 4."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Contributions, and what each of them adds to each element of a sum: ``weights`` (K, P), binary32."""

    names: tuple[str, ...]
    weights: Floats


def power_of_two_probe(names: Sequence[str]) -> Probe:
    """Return a probe whose sums show how often each contribution is in them, whatever their order.

    Twelve contributions at a time share two elements: in one they add 1, 4, 16, …, 4^11, in the other the same in
    reverse. So every sum in which none is there more than three times is exact in binary32, and its digits in base 4
    are those numbers. Two elements, since one alone could be deceived: one contribution five times and the next not at
    all make the same sum as each once. Both together can't be, by any numbers: let i be the first contribution that
    isn't there once. In the first element, all later ones are multiples of 4^(i+1), so i is there 4, 8, … times too
    often; in the other i has the greatest weight among those that differ, and the rest together weigh less than that.

    Raises
    ------
    InvalidArgumentError
        If a name is there twice, or there are none.
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
    """Which contributions are missing in a sum or there more than once.

    ``measured`` counts them, and the sums that no multiplicities up to three make: ``undecoded`` describes those.
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
    """Decode the sums of a probe: passed if each contribution is in each of its sums once.

    Parameters
    ----------
    values
        The sums, (P) as the probe's weights, or (P, M): M sums of each.
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


def _decoded(value: float, weights: Floats) -> dict[int, int] | None:
    """Return how often each contribution with a weight is in a sum; None if no numbers up to three make it."""
    if not 0 <= value < 2.0**24 or value != int(value):
        return None
    rest = int(value)
    times = {}
    for k in np.argsort(weights, kind="stable").tolist():
        if weights[k]:
            rest, times[k] = divmod(rest, _BASE)
    return dict(sorted(times.items())) if rest == 0 else None


# ---- Bit stability ----


class Promise(Enum):
    """What a reduction mode promises about the bits of its sums."""

    BITWISE = "bitwise"  # those of the golden run
    FIXED_BITS = "fixed bits"  # the same in every run, on any partition and number of ranks
    BOUNDED = "bounded"  # within the bound of a sum in any order


PROMISES: Mapping[str, Promise] = {
    "ordered": Promise.BITWISE,
    "tree": Promise.FIXED_BITS,
    "redux": Promise.BOUNDED,
}
"""Reduction modes of ``Trainer``."""


@dataclass(frozen=True, slots=True)
class BitDifference:
    """A tensor of a run with other bits than another run's, at the first element that differs.

    ``ulps`` is the distance in units in the last place, None where one is no number.
    """

    run: str
    against: str
    tensor: str
    index: tuple[int, ...]
    found: float
    expected: float
    found_bits: str
    expected_bits: str
    ulps: int | None
    num_different: int
    num_elements: int

    def __str__(self) -> str:
        return (
            f"{self.run}, {self.tensor}{list(self.index)}: {self.found!r} ({self.found_bits}), {self.against} has "
            f"{self.expected!r} ({self.expected_bits}), {self.ulps} units in the last place; "
            f"{self.num_different} of {self.num_elements} elements differ"
        )


@dataclass(frozen=True, kw_only=True)
class BitStabilityResult(CheckResult):
    """Whether the bits of several runs keep a promise, and the strongest promise that these runs would have kept.

    ``measured`` and ``limit``: for ``bounded`` the largest error ÷ limit and 1; else the number of tensors that differ,
    and 0. ``differences`` are those from the golden run, if there is one, else from the first run; for ``bounded`` they
    are no fault. ``errors`` has the worst tensor of each run, where references were given.
    """

    promise: Promise
    kept: Promise | None
    runs: tuple[str, ...]
    num_tensors: int
    differences: tuple[BitDifference, ...]
    errors: tuple[TensorError, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        kept = self.kept.value if self.kept else "nothing that was compared"
        yield f"{len(self.runs)} runs of {self.num_tensors} tensors; kept: {kept}"
        yield from map(str, self.differences[:MAX_LISTED])
        if len(self.differences) > MAX_LISTED:
            yield f"… and {len(self.differences) - MAX_LISTED} more"
        yield from map(str, self.errors)


MAX_LISTED = 20
"""So many differences are described one by one."""


def check_bit_stability(
    runs: Mapping[str, Mapping[str, Floats]],
    promise: Promise,
    *,
    golden: Mapping[str, Floats] | None = None,
    references: Mapping[str, GradientReference] | None = None,
) -> BitStabilityResult:
    """Compare the bits of the same tensors in several runs with what their reduction mode promises.

    Parameters
    ----------
    runs
        By a name that says what was run where (repetition, partition, ranks): the tensors by name.
    promise
        The class that is checked.
    golden
        The tensors that ``BITWISE`` expects.
    references
        The tensors' references, for ``BOUNDED``.

    Without the golden run or the references that the promise is about, the outcome is ``NOT_COMPARABLE``; with a single
    run, ``FIXED_BITS`` is ``INCONCLUSIVE``.

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
    differences: list[BitDifference] = []
    for label, tensors in runs.items():
        for name in names:
            against, expected = ("golden", golden[name]) if golden is not None else (first, runs[first][name])
            difference = _bit_difference(label, against, name, tensors[name], expected)
            if difference:
                differences.append(difference)
    fixed = all(
        _bit_difference(label, first, name, tensors[name], runs[first][name]) is None
        for label, tensors in runs.items()
        for name in names
    )
    errors: list[TensorError] = []
    if references is not None:
        errors = [
            max(
                (gradient_error(f"{label}, {name}", tensors[name], references[name]) for name in names),
                key=lambda error: error.ratio,
            )
            for label, tensors in runs.items()
        ]
    held = {
        Promise.BITWISE: golden is not None and not differences,
        Promise.FIXED_BITS: fixed and len(runs) > 1,
        Promise.BOUNDED: bool(errors) and all(error.ratio <= 1 for error in errors),
    }
    measured: float
    if promise is Promise.BOUNDED:
        measured, limit = max((error.ratio for error in errors), default=np.nan), 1
        finding = f"the largest error is {measured:.3g} of its limit"
    else:
        measured, limit = len(differences), 0
        finding = f"{len(differences)} of {len(names) * len(runs)} tensors differ"
    outcome = Outcome.PASSED if held[promise] else Outcome.FAILED
    if promise is Promise.BITWISE and golden is None:
        outcome, finding = Outcome.NOT_COMPARABLE, "there is no golden run"
    elif promise is Promise.BOUNDED and references is None:
        outcome, finding = Outcome.NOT_COMPARABLE, "there are no references"
    elif promise is Promise.FIXED_BITS and len(runs) < 2:
        outcome, finding = Outcome.INCONCLUSIVE, "one run shows nothing about others"
    return BitStabilityResult(
        name="bit stability",
        outcome=outcome,
        finding=f"{promise.value}: {finding}",
        measured=None if outcome is Outcome.NOT_COMPARABLE else measured,
        limit=limit,
        promise=promise,
        kept=next((candidate for candidate in Promise if held[candidate]), None),
        runs=tuple(runs),
        num_tensors=len(names),
        differences=tuple(differences),
        errors=tuple(errors),
    )


def _bit_difference(run: str, against: str, name: str, found: Floats, expected: Floats) -> BitDifference | None:
    if found.shape != expected.shape or found.dtype != np.float32 or expected.dtype != np.float32:
        raise InvalidArgumentError(
            f"{run}, {name}: found {found.dtype} {found.shape}, expected float32 {expected.shape} as {against}"
        )
    found_bits, expected_bits = (np.asarray(values, order="C").view(np.uint32) for values in (found, expected))
    different = found_bits != expected_bits
    if not different.any():
        return None
    index = tuple(map(int, np.unravel_index(int(different.argmax()), different.shape)))
    values = float(found[index]), float(expected[index])
    bits = int(found_bits[index]), int(expected_bits[index])
    return BitDifference(
        run=run,
        against=against,
        tensor=name,
        index=index,
        found=values[0],
        expected=values[1],
        found_bits=f"{bits[0]:08x}",
        expected_bits=f"{bits[1]:08x}",
        ulps=None if np.isnan(values).any() else abs(_ordered(bits[0]) - _ordered(bits[1])),
        num_different=int(different.sum()),
        num_elements=different.size,
    )


def _ordered(bits: int) -> int:
    """Return a value's number in the order of all binary32 values; +0 and -0 have number 0."""
    return bits if bits < 1 << 31 else (1 << 31) - bits
