"""Parameter gradients in float64, computed from a step's own activations, with a bound of the error in binary32.

A parameter gradient is a sum, over the batch's tokens, of products of two tensors that ``keep_activations`` keeps in
binary32. So float64 gives its exact value up to float64's own roundings, and the difference from it is the error of
the sum alone, without that of the activations.

The bound. Let u = 2^-24, and let a computed sum add the terms t_1 … t_n, each the result of p rounded operations. In
any order and shape of the sum, a term passes at most n - 1 rounded additions (the first adds to +0 and is exact). So
every term is multiplied by at most p + n - 1 factors 1 + δ, |δ| ≤ u, and with γ_k = k·u / (1 - k·u)

    |computed - exact| ≤ γ_(p + n - 1) · Σ|t_i|

(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, Lemma 3.1 and Section 4.2). Here p is 1 for
the weight of a matmul (one product), 0 for biases and embeddings, and 3 for the weight of a layernorm
((x - m)·s·dout). wte adds terms of the first two kinds. A fused multiply-add rounds less often, so the bound also holds
for any BLAS. A product that underflows has an absolute error of at most 2^-150, which is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.files.model import ModelConfig

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

ReadTensor = Callable[[str, str, int | None], Floats]
"""Returns a tensor by group, name and layer, as ``Trainer.tensor`` does."""

UNIT_ROUNDOFF = 2.0**-24
"""u of binary32, round to nearest."""

_UNIT_ROUNDOFF_64 = 2.0**-53
UNDERFLOW = 2.0**-150
"""Largest error of rounding to a denormal number: half of the smallest one, 2^-149."""


def gamma(roundings: ArrayLike, unit_roundoff: float = UNIT_ROUNDOFF) -> Doubles:
    """Return γ_k = k·u / (1 - k·u), or infinity where k·u is 1 or more and there is no bound."""
    product = np.asarray(roundings, np.float64) * unit_roundoff
    bound: Doubles = np.divide(product, 1 - product, out=np.full_like(product, np.inf), where=product < 1)
    return bound


@dataclass(frozen=True, eq=False)
class GradientReference:
    """A sum in float64 and what bounds its error in binary32; all arrays have the tensor's shape.

    ``magnitude`` is the sum of the terms' absolute values, ``roundings`` the k of γ_k, and ``underflow`` the absolute
    error that underflowing products can add. The last two are one number for all elements, or one for each.
    """

    value: Doubles
    magnitude: Doubles
    roundings: int | NDArray[np.int64]
    underflow: float | Doubles = 0.0

    def limit(self) -> Doubles:
        """Return the largest difference between a correct binary32 sum and ``value``.

        It includes the errors of float64: for ``value`` and for ``magnitude`` at most γ_k, with u = 2^-53, times the
        exact magnitude. Together they are less than twice γ_k times the computed magnitude.
        """
        bound = gamma(self.roundings)
        of_reference = gamma(self.roundings, _UNIT_ROUNDOFF_64)
        limit: Doubles = (bound + 2 * of_reference) * self.magnitude + (1 + bound) * self.underflow
        return limit


def gradient_references(
    tensor: ReadTensor, config: ModelConfig, inputs: NDArray[np.integer]
) -> Iterator[tuple[str, int | None, GradientReference]]:
    """Yield name, layer and reference of every parameter gradient of the last step, in order of their completion.

    ``tensor`` reads those of a trainer with ``keep_activations``; ``inputs`` are the input ids of that step (B, T).
    """
    last = config.num_layers - 1
    logits = _matmul_weight(tensor, "lnf", "logits", None)
    yield from _layernorm(tensor, "lnf", ("residual3", last), None)
    for layer in range(last, -1, -1):
        yield from _matmul(tensor, "fcproj", "fch_gelu", "fcproj", layer)
        yield from _matmul(tensor, "fc", "ln2", "fch", layer)
        yield from _layernorm(tensor, "ln2", ("residual2", layer), layer)
        yield from _matmul(tensor, "attproj", "atty", "attproj", layer)
        yield from _matmul(tensor, "qkv", "ln1", "qkv", layer)
        yield from _layernorm(tensor, "ln1", ("residual3", layer - 1) if layer else ("encoded", None), layer)

    dout = _rows(tensor, "activation_grads", "encoded", None)
    tokens = np.asarray(inputs)
    embedding = _rows_summed(tokens.reshape(-1), dout, config.padded_vocab_size)
    yield (
        "wte",
        None,
        GradientReference(
            logits.value + embedding.value,
            logits.magnitude + embedding.magnitude,
            # One product, and one addition less than terms: N from the logits, and a token's occurrences.
            1 + len(dout) + np.bincount(tokens.reshape(-1), minlength=config.padded_vocab_size)[:, None] - 1,
            logits.underflow,
        ),
    )
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    yield "wpe", None, _rows_summed(positions.reshape(-1), dout, config.max_seq_len)


def _rows(tensor: ReadTensor, group: str, name: str, layer: int | None) -> Doubles:
    """Read a tensor (B,T,X) as (N,X)."""
    values = tensor(group, name, layer)
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def _matmul_weight(tensor: ReadTensor, inp: str, out: str, layer: int | None) -> GradientReference:
    """Sum inp[n,i]·dout[n,o] over n; a product of binary32 numbers is exact in float64."""
    x = _rows(tensor, "activations", inp, layer)
    dout = _rows(tensor, "activation_grads", out, layer)
    return GradientReference(dout.T @ x, np.abs(dout).T @ np.abs(x), len(x), len(x) * UNDERFLOW)


def _matmul(
    tensor: ReadTensor, name: str, inp: str, out: str, layer: int
) -> Iterator[tuple[str, int, GradientReference]]:
    yield name + "w", layer, _matmul_weight(tensor, inp, out, layer)
    yield name + "b", layer, _columns_summed(_rows(tensor, "activation_grads", out, layer))


def _layernorm(
    tensor: ReadTensor, name: str, inp: tuple[str, int | None], layer: int | None
) -> Iterator[tuple[str, int | None, GradientReference]]:
    """Sum (x - m)·s·dout, and dout, over n; the product with s can underflow too, and is then multiplied by dout."""
    x = _rows(tensor, "activations", *inp)
    mean = tensor("activations", f"{name}_mean", layer).reshape(-1, 1).astype(np.float64)
    rstd = tensor("activations", f"{name}_rstd", layer).reshape(-1, 1).astype(np.float64)
    dout = _rows(tensor, "activation_grads", name, layer)
    terms = (x - mean) * rstd * dout
    magnitude = np.abs(terms).sum(axis=0)
    underflow = UNDERFLOW * (len(dout) + np.abs(dout).sum(axis=0))
    yield name + "w", layer, GradientReference(terms.sum(axis=0), magnitude, len(dout) + 2, underflow)
    yield name + "b", layer, _columns_summed(dout)


def _columns_summed(dout: Doubles) -> GradientReference:
    return GradientReference(dout.sum(axis=0), np.abs(dout).sum(axis=0), len(dout) - 1)


def _rows_summed(index: NDArray[np.integer], dout: Doubles, num_rows: int) -> GradientReference:
    """Sum the rows of dout (N,C) that have the same index; (num_rows,C)."""
    value = np.zeros((num_rows, dout.shape[1]))
    magnitude = np.zeros_like(value)
    np.add.at(value, index, dout)
    np.add.at(magnitude, index, np.abs(dout))
    terms = np.bincount(index, minlength=num_rows)
    return GradientReference(value, magnitude, np.maximum(terms - 1, 0)[:, None])
