"""Matrix products in float64 from a step's own operands, against what the matmuls made of them in binary32.

Tests of matmuls by BLAS call it: any order of the sums and any rounding of their terms is within its bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.reduction import TensorError, check_gradients, gradient_error
from starpullm.checks.reference64 import UNDERFLOW, GradientReference
from starpullm.checks.result import CheckResult, Outcome
from starpullm.trainer import Trainer

__all__ = ["ProductErrorResult", "check_products"]

Doubles = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ProductErrorResult(CheckResult):
    """The error of every matmul's results; ``measured`` is the largest error ÷ limit and ``limit`` 1.

    ``tensors`` are the outputs in the order of the forward pass, the gradients of inputs, then the parameters'.
    """

    matmul: str
    tensors: tuple[TensorError, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors beyond their limit, or else the one that comes nearest to it."""
        beyond = [tensor for tensor in self.tensors if tensor.num_beyond]
        yield from map(str, beyond or [max(self.tensors, key=lambda tensor: tensor.ratio)])


def check_products(
    trainer: Trainer, inputs: NDArray[np.int32], targets: NDArray[np.int32], *, sub_batches: int = 1
) -> ProductErrorResult:
    """Do one step and compare the results of all its matmuls with the same products in float64.

    An output is a sum of C products and a bias, an input's gradient one of OC products: computed in any order, with or
    without fused operations, they are at most γ_(C + 1) and γ_OC times the sum of the terms' magnitudes away from it.
    ``reference64`` says why, and has the parameters' gradients.

    Parameters
    ----------
    trainer
        With ``keep_activations``.
    inputs, targets
        The step's ids (B, T).
    sub_batches
        S, as the trainer's.
    """
    layers = range(trainer.config.num_layers)
    places: list[tuple[str, int | None]] = [(name, layer) for layer in layers for name in _LINEAR]
    places.append(("logits", None))
    # Before the step, since it updates them.
    weights = {place: _weights(trainer, *place) for place in places}
    trainer.step(inputs, targets)
    outputs = [_output(trainer, name, layer, *weights[name, layer]) for name, layer in places]
    input_grads = [_input_grad(trainer, name, layer, weights[name, layer][0]) for name, layer in reversed(places)]
    gradients = check_gradients(trainer.tensor, trainer.config, inputs, sub_batches=sub_batches)
    errors = (*outputs, *input_grads, *gradients.tensors)
    worst = max(errors, key=lambda error: error.ratio)
    beyond = sum(error.num_beyond > 0 for error in errors)
    return ProductErrorResult(
        name="product error",
        outcome=Outcome.FAILED if beyond else gradients.outcome,
        finding=f"{len(errors)} tensors, {beyond} beyond their limit; the largest error is {worst.ratio:.3g} of it",
        measured=worst.ratio,
        limit=1,
        matmul=trainer.runtime.matmul,
        tensors=errors,
    )


class _Linear(NamedTuple):
    """Names of a matmul's input and parameters; it is called like its output."""

    inp: str
    weight: str
    bias: str | None


_LINEAR = {
    "qkv": _Linear("ln1", "qkvw", "qkvb"),
    "attproj": _Linear("atty", "attprojw", "attprojb"),
    "fch": _Linear("ln2", "fcw", "fcb"),
    "fcproj": _Linear("fch_gelu", "fcprojw", "fcprojb"),
}
_LOGITS = _Linear("lnf", "wte", None)


def _names(output: str) -> _Linear:
    return _LOGITS if output == "logits" else _LINEAR[output]


def _weights(trainer: Trainer, output: str, layer: int | None) -> tuple[Doubles, Doubles]:
    """Return weight (OC,C) and bias (OC)."""
    names = _names(output)
    weight = trainer.tensor("params", names.weight, layer).astype(np.float64)
    bias = np.zeros(len(weight)) if names.bias is None else trainer.tensor("params", names.bias, layer)
    return weight, bias.astype(np.float64)


def _rows(trainer: Trainer, group: str, name: str, layer: int | None) -> Doubles:
    """Read a tensor (B,T,X) as (N,X)."""
    values = trainer.tensor(group, name, layer)
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def _output(trainer: Trainer, output: str, layer: int | None, weight: Doubles, bias: Doubles) -> TensorError:
    inp = _rows(trainer, "activations", _names(output).inp, layer)
    depth = weight.shape[1]
    reference = GradientReference(
        inp @ weight.T + bias, np.abs(inp) @ np.abs(weight.T) + np.abs(bias), depth + 1, depth * UNDERFLOW
    )
    return gradient_error(_label(output, layer), _rows(trainer, "activations", output, layer), reference)


def _input_grad(trainer: Trainer, output: str, layer: int | None, weight: Doubles) -> TensorError:
    dout = _rows(trainer, "activation_grads", output, layer)
    inp, depth = _names(output).inp, len(weight)
    reference = GradientReference(dout @ weight, np.abs(dout) @ np.abs(weight), depth, depth * UNDERFLOW)
    return gradient_error(f"d{_label(inp, layer)}", _rows(trainer, "activation_grads", inp, layer), reference)


def _label(name: str, layer: int | None) -> str:
    return name if layer is None else f"{name}[{layer}]"
