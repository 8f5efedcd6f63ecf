"""The error of every parameter gradient, compared with the bound of its sum."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.cases import REPRODUCIBLE, Case, SuiteOptions, find_record
from starpullm.checks.check import Check, Needs, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.execution_order import execution_order
from starpullm.checks.reference64 import GradientReference, ReadTensor, gradient_references
from starpullm.checks.references import record_trainer, why_not_comparable
from starpullm.checks.result import Finding, Result
from starpullm.checks.training import case_trainer, local_batch, on_rank_0
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.files.checkpoint import Checkpoint, write_checkpoint
from starpullm.files.model import ModelConfig
from starpullm.golden.records import GoldenRecord, layer_name, tensor_digest
from starpullm.options import RuntimeConfiguration
from starpullm.runtime import Partition


@dataclass(frozen=True, slots=True)
class TensorError:
    """The error of one tensor at the element where ``ratio`` = error ÷ limit is largest.

    ``ratio`` is infinite for a value or a reference that isn't finite. ``num_beyond`` is the number of elements whose
    ratio is more than 1, ``num_not_finite`` that of values and ``num_without_reference`` that of references that aren't
    finite. ``is_bounded`` is false if a sum has so many terms that no limit is known. ``explained_by`` says how many
    times the sum contains contributions that should be there exactly once, if these numbers explain the error, that is,
    if with them every element is within its limit.
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
    explained_by: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        line = (
            f"{self.tensor}{list(self.index)}: {self.actual!r}, expected {self.expected!r}: error {self.error:.3e} is "
            f"{self.ratio:.3g} of its limit; {self.num_beyond} of {self.num_elements} elements beyond it"
        )
        times = (f"{name} {f'is there {n} times' if n else 'is missing'}" for name, n in self.explained_by.items())
        return f"{line}; {', '.join(times)}" if self.explained_by else line


def gradient_error(
    tensor: str, actual: ArrayLike, reference: GradientReference, explained_by: Mapping[str, int] | None = None
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
        explained_by=explained_by or {},
    )


def multiplicities(actual: ArrayLike, contributions: Mapping[str, GradientReference]) -> dict[str, int] | None:
    """Return how many times a sum contains each contribution, or None if no integers explain every element.

    The numbers are fitted by least squares over all elements and rounded to integers. They are returned only if the
    sum of the contributions, each taken that many times, differs from the actual sum by at most its limit everywhere.
    """
    values, parts = np.asarray(actual, np.float64), list(contributions.values())
    if not all(np.isfinite(array).all() for array in (values, *(part.value for part in parts))):
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
    return dict(zip(contributions, times.tolist(), strict=True))


_SMALL = np.float32(1e-19)
"""Factor of small parameters; the product of two is then below the smallest normal number, about 1e-38."""


@check
class GradientBounds(Check):
    """Compare every gradient with its sum in float64, by the bound that ``reference64`` derives.

    The sums are those of activations and their gradients, whose bits no reduction changes: in the first step these are
    the record's, where its bits can be had at all.

    What is measured is the largest error ÷ bound. For a gradient beyond its bound the result says which sub-batches it
    doesn't contain exactly once, if that explains the error.
    """

    family, unit = "reduction", "elements"
    claim = "every gradient is within the error bound of its sum"
    fault = "gradients are beyond the error bounds of their sums, or these are of wrong activations"
    cannot_see = "errors of the activations of later steps, from which the float64 sums are computed"

    def placements(self, options: SuiteOptions, ranks: int) -> Sequence[RuntimeConfiguration | None]:
        """Return on one rank also that of a run with delays which has an odd number of workers."""
        delayed = options.perturbing_configurations if ranks == 1 else []
        odd = [place for place in delayed if Partition.parse(place.partition).workers in range(3, 1024, 2)]
        return [*super().placements(options, ranks), *odd[:1]]

    def run(self, context: CheckContext, case: Case) -> Result:
        """Compare the gradients of the second step, or of the first one if one of these isn't finite.

        Such a gradient would make the parameters, and so the reference of the second step, not finite either.
        """
        golden = find_record(case.record)
        with case_trainer(context, case) as trainer:
            number, seed = 0, golden.seed
            trainer.step(*local_batch(trainer, seed, number))
            has_bits = not why_not_comparable(context.runtime)
            wrong, compared = on_rank_0(trainer, partial(_other_activations, golden)) if has_bits else ([], 0)
            if wrong:
                return self.result(compared=compared, findings=wrong)
            grads = [key for key in execution_order(golden.model.num_layers) if key[0] == "grads"]
            if on_rank_0(trainer, lambda tensor: all(np.isfinite(tensor(*key)).all() for key in grads)):
                number, seed = 1, case.seed
                trainer.step(*local_batch(trainer, seed, number))
            inputs, _ = generate_tokens(seed, number, golden.batch_size, golden.seq_len, golden.model.vocab_size)
            sub_batches = context.runtime.ranks * case.sub_batches
            return on_rank_0(trainer, lambda tensor: self.judge(tensor, trainer.config, inputs, sub_batches, compared))

    def judge(
        self,
        tensor: ReadTensor,
        config: ModelConfig,
        inputs: NDArray[np.integer],
        sub_batches: int = 1,
        compared: int = 0,
    ) -> Result:
        """Compare every parameter gradient of the last step with its sum; arguments as ``errors``.

        ``compared`` is the number of elements of activations that have been compared before.
        """
        errors = self.errors(tensor, config, inputs, sub_batches)
        return self.of_errors(errors, compared + sum(error.num_elements for error in errors))

    def errors(
        self, tensor: ReadTensor, config: ModelConfig, inputs: NDArray[np.integer], sub_batches: int
    ) -> list[TensorError]:
        """Return the error of each parameter gradient.

        ``tensor`` is ``Trainer.tensor`` of a trainer with ``keep_activations``, after a step; ``inputs`` are the input
        ids of that step (B, T), and ``sub_batches`` is the trainer's S. An `InvalidArgumentError` is raised if these
        don't divide B.
        """
        if sub_batches < 1 or len(inputs) % sub_batches:
            raise InvalidArgumentError(f"sub_batches: found {sub_batches}, expected a divisor of {len(inputs)}")
        errors = []
        with np.errstate(invalid="ignore"):
            for name, layer, reference in gradient_references(tensor, config, inputs):
                label, actual = layer_name(name, layer), tensor("grads", name, layer)
                error = gradient_error(label, actual, reference)
                if error.num_beyond and sub_batches > 1:
                    parts = _sub_batch_references(tensor, config, inputs, sub_batches, (name, layer))
                    found = multiplicities(actual, parts) or {}
                    wrong = {name: times for name, times in found.items() if times != 1}
                    error = gradient_error(label, actual, reference, wrong)
                errors.append(error)
        return errors

    def of_errors(self, errors: Sequence[TensorError], compared: int) -> Result:
        """Return the verdict: what isn't finite is a failure, a sum without a bound isn't."""
        worst = max(error.ratio for error in errors)
        beyond = [error for error in errors if error.num_beyond]
        notes = [f"{len(errors)} gradients, the largest error is {worst:.3g} of its bound"]
        if not_finite := sum(error.num_not_finite > 0 for error in errors):
            notes.append(f"{not_finite} have values that aren't finite")
        if without := sum(error.num_without_reference > 0 for error in errors):
            notes.append(f"{without} have no reference, because the step's activations aren't finite")
        bounded = all(error.is_bounded for error in errors)
        return self.result(
            compared=compared,
            findings=[Finding(str(error)) for error in beyond],
            measured=worst,
            limit=1,
            undecided="" if bounded else "so many terms that no bound is known",
            note="; ".join(notes),
            tensors=[asdict(error) for error in errors],
        )


@check
class DenormalGradients(GradientBounds):
    """Compare every gradient of the first step with its sum in float64, in a model of very small parameters.

    What is counted is denormal elements: without any, the gradients show nothing. The values of the golden records are
    too large to show what flush-to-zero does.
    """

    unit = "denormal elements"
    cannot_see = "errors of the activations, from which the float64 sums are computed"
    claim = "gradients that flush-to-zero would make 0 are within their error bounds too"
    needs = Needs(ranks=(1, 1), promises=REPRODUCIBLE, light=True)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Train one step."""
        golden = find_record(case.record)
        parameters = {name: array * _SMALL for name, array in generate_parameters(golden.model, case.seed)}
        inputs, targets = generate_tokens(case.seed, 0, golden.batch_size, golden.seq_len, golden.model.vocab_size)
        options: dict[str, Any] = {"sub_batches": case.sub_batches, "reduction": case.reduction}
        with tempfile.TemporaryDirectory(dir=context.directory) as directory:
            checkpoint = Path(directory, "small.bin")
            write_checkpoint(checkpoint, Checkpoint(golden.model, parameters))
            with record_trainer(context.runtime, golden, checkpoint, **options) as trainer:
                trainer.step(inputs, targets)
                errors = self.errors(trainer.tensor, trainer.config, inputs, case.sub_batches)
                gradients = [trainer.tensor("grads", name) for name in trainer.tensor_names("grads")]
        return self.of_errors(errors, count_denormals(gradients))


def count_denormals(tensors: Iterable[NDArray[np.float32]]) -> int:
    """Return the number of elements that flush-to-zero would make 0."""
    smallest_normal = np.finfo(np.float32).smallest_normal
    return sum(int(np.count_nonzero((array != 0) & (np.abs(array) < smallest_normal))) for array in tensors)


def _other_activations(golden: GoldenRecord, tensor: ReadTensor) -> tuple[list[Finding], int]:
    """Return which activations of the first step, and gradients of them, have other bits than the record's.

    The number is that of elements compared.
    """
    wrong, compared = [], 0
    for group, name, layer in execution_order(golden.model.num_layers):
        if group.startswith("activation"):
            values, label = tensor(group, name, layer), layer_name(name, layer)
            compared += values.size
            if tensor_digest(values) != golden.steps[0].digests[group][label]:
                wrong.append(Finding(f"{group}/{label} of the first step: expected the record's bits, found others"))
    return wrong, compared


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
