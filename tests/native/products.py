"""Matrix products in float64 from a step's own operands, compared with the results of the matmuls in binary32.

The bound allows any order of the sums and any rounding of their terms, so it holds for matmuls by a BLAS.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.reduction import GradientBounds, TensorError, gradient_error
from starpullm.checks.reference64 import UNDERFLOW, GradientReference
from starpullm.golden.records import layer_name
from starpullm.trainer import Trainer

Doubles = NDArray[np.float64]


def product_errors(trainer: Trainer, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> list[TensorError]:
    """Do one step and compare the results of all its matmuls with the same products in float64.

    The errors are those of the outputs in the order of the forward pass, of the gradients of the inputs, then of the
    parameters.

    An output is a sum of C products and a bias, and the gradient of an input a sum of OC products. Computed in any
    order, with or without fused operations, they differ from float64 by at most γ_(C + 1) and γ_OC times the sum of
    the terms' magnitudes (see ``reference64``, which also has the gradients of the parameters).
    """
    layers = range(trainer.config.num_layers)
    places: list[tuple[str, int | None]] = [(name, layer) for layer in layers for name in _LINEAR]
    places.append(("logits", None))
    # They are read before the step, because it updates them.
    weights = {place: _weights(trainer, *place) for place in places}
    trainer.step(inputs, targets)
    outputs = [_output(trainer, name, layer, *weights[name, layer]) for name, layer in places]
    input_grads = [_input_grad(trainer, name, layer, weights[name, layer][0]) for name, layer in reversed(places)]
    gradients = GradientBounds().errors(trainer.tensor, trainer.config, inputs, sub_batches=1)
    return [*outputs, *input_grads, *gradients]


class _Linear(NamedTuple):
    """Names of a matmul's input and parameters; the matmul has the name of its output."""

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
    return gradient_error(layer_name(output, layer), _rows(trainer, "activations", output, layer), reference)


def _input_grad(trainer: Trainer, output: str, layer: int | None, weight: Doubles) -> TensorError:
    dout = _rows(trainer, "activation_grads", output, layer)
    inp, depth = _names(output).inp, len(weight)
    reference = GradientReference(dout @ weight, np.abs(dout) @ np.abs(weight), depth, depth * UNDERFLOW)
    return gradient_error(f"d{layer_name(inp, layer)}", _rows(trainer, "activation_grads", inp, layer), reference)
