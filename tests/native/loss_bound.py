"""GPT-2's loss in float64, and how far a loss in binary32 can be from it: docs/numerics.md, "Other implementations".

The bound is Σ |∂loss/∂x|·δ(x) over the elements x of all activations, where δ(x) bounds the rounding errors of the one
operation that computes x. It holds to first order in u, for any order of the sums, with or without fused operations.

Size letters: B batch, T sequence length, C channels, NH heads, hs = C/NH, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.reference64 import UNIT_ROUNDOFF, gamma
from starpullm.files.checkpoint import Checkpoint

Doubles = NDArray[np.float64]
ReadGradient = Callable[[str, int | None], NDArray[np.float32]]
"""Returns the gradient of an activation by name and layer, with the activation's shape."""

u: Final = UNIT_ROUNDOFF
FUNCTION: Final = 8
"""Roundings that stand for one call of exp, tanh or log: a libm has at most 2, vector versions up to 4 ULP = 8 u."""
SLACK: Final = 1.001
"""For gradients, which are computed in binary32."""


@dataclass
class Forward:
    """A forward pass in float64: the mean loss, δ of it, and δ of each activation by name and layer."""

    loss: float = 0.0
    loss_rounding: float = 0.0
    roundings: dict[tuple[str, int | None], Doubles] = field(default_factory=dict)

    def bound(self, gradient: ReadGradient) -> float:
        """Return the largest difference between ``loss`` and a loss in binary32; 2·bound for two such losses."""
        total = self.loss_rounding
        for (name, layer), rounding in self.roundings.items():
            total += float((np.abs(gradient(name, layer).reshape(rounding.shape)) * rounding).sum())
        return SLACK * total

    def keep(self, name: str, layer: int | None, result: tuple[Doubles, Doubles]) -> Doubles:
        """Note δ of an activation, and return its value."""
        value, self.roundings[name, layer] = result
        return value


def forward(checkpoint: Checkpoint, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> Forward:
    """Compute the loss of token ids (B,T) from a checkpoint's parameters."""
    config = checkpoint.config
    p = {name: array.astype(np.float64) for name, array in checkpoint.parameters.items()}
    done = Forward()
    x = done.keep("encoded", None, _sum(p["wte"][inputs], p["wpe"][: inputs.shape[1]]))
    for i in range(config.num_layers):
        w = {name: array[i] for name, array in p.items() if name not in ("wte", "wpe", "lnfw", "lnfb")}
        ln1 = done.keep("ln1", i, _layernorm(x, w["ln1w"], w["ln1b"]))
        qkv = done.keep("qkv", i, _matmul(ln1, w["qkvw"], w["qkvb"]))
        atty = done.keep("atty", i, _attention(qkv, config.num_heads))
        attproj = done.keep("attproj", i, _matmul(atty, w["attprojw"], w["attprojb"]))
        x = done.keep("residual2", i, _sum(x, attproj))
        ln2 = done.keep("ln2", i, _layernorm(x, w["ln2w"], w["ln2b"]))
        fch = done.keep("fch", i, _matmul(ln2, w["fcw"], w["fcb"]))
        fch_gelu = done.keep("fch_gelu", i, _gelu(fch))
        fcproj = done.keep("fcproj", i, _matmul(fch_gelu, w["fcprojw"], w["fcprojb"]))
        x = done.keep("residual3", i, _sum(x, fcproj))
    lnf = done.keep("lnf", None, _layernorm(x, p["lnfw"], p["lnfb"]))
    logits = done.keep("logits", None, _matmul(lnf, p["wte"], np.zeros(len(p["wte"]))))
    done.loss, done.loss_rounding = _mean_loss(logits[..., : config.vocab_size], targets)
    return done


def _sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """One rounding."""
    return a + b, u * np.abs(a + b)


def _matmul(x: Doubles, weight: Doubles, bias: Doubles) -> tuple[Doubles, Doubles]:
    """Sums of C products and a bias: γ_(C + 1) of the magnitudes."""
    C = x.shape[-1]
    return x @ weight.T + bias, gamma(C + 1) * (np.abs(x) @ np.abs(weight).T + np.abs(bias))


def _layernorm(x: Doubles, weight: Doubles, bias: Doubles) -> tuple[Doubles, Doubles]:
    """Mean and variance in any of the usual ways: two passes, one pass over x and x², or Welford's."""
    C = x.shape[-1]

    def mean(values: Doubles) -> Doubles:
        average: Doubles = values.mean(axis=-1, keepdims=True)
        return average

    m = mean(x)
    v = mean((x - m) ** 2)
    s = 1 / np.sqrt(v + 1e-5)
    m_error = gamma(C) * mean(np.abs(x))
    v_error = 2 * gamma(C + 2) * mean(x**2)
    # s changes by half of v's relative change; an addition, a root and a division round.
    s_error = s * (v_error / (2 * (v + 1e-5)) + 4 * u)
    # (x - m)·s·w + b, or x·s·w + (b - m·s·w): at most 6 roundings of each term.
    rounding = gamma(6) * ((np.abs(x) + np.abs(m)) * s * np.abs(weight) + np.abs(bias))
    return (x - m) * s * weight + bias, (m_error * s + np.abs(x - m) * s_error) * np.abs(weight) + rounding


def _attention(qkv: Doubles, num_heads: int) -> tuple[Doubles, Doubles]:
    """Causal attention of qkv (B,T,3C); the scale is applied once or in two parts."""
    B, T, three_C = qkv.shape
    hs = three_C // 3 // num_heads
    q, k, v = qkv.reshape(B, T, 3, num_heads, hs).transpose(2, 0, 3, 1, 4)
    scale = 1 / np.sqrt(hs)
    scores = q @ k.swapaxes(-1, -2) * scale
    score_error = gamma(hs + 6) * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)) * scale
    masked = np.triu(np.ones((T, T), bool), 1)
    scores[..., masked] = -np.inf
    shifted = scores - scores.max(axis=-1, keepdims=True)
    att = np.exp(shifted)
    att /= att.sum(axis=-1, keepdims=True)
    # A score's error moves its exponential; x - max, exp, the sum of T terms and the division round. The sum moves too.
    moved = np.where(masked, 0, score_error + u * np.abs(np.where(masked, 0, shifted))) + gamma(FUNCTION)
    att_error = att * (moved + (att * moved).sum(axis=-1, keepdims=True) + gamma(T + 2))
    out = att @ v
    out_error = att_error @ np.abs(v) + gamma(T + 1) * (att @ np.abs(v))

    def joined(values: Doubles) -> Doubles:
        return values.transpose(0, 2, 1, 3).reshape(B, T, num_heads * hs)

    return joined(out), joined(out_error)


def _gelu(x: Doubles) -> tuple[Doubles, Doubles]:
    """0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""
    argument = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    tanh = np.tanh(argument)
    # Ten roundings of the argument move tanh by its slope; then tanh, the sum and the products round.
    tanh_error = gamma(10) * np.abs(argument) * (1 - tanh**2) + FUNCTION * u * np.abs(tanh)
    y = 0.5 * x * (1 + tanh)
    return y, 0.5 * np.abs(x) * (tanh_error + u * (1 + tanh)) + 3 * u * np.abs(y)


def _mean_loss(logits: Doubles, targets: NDArray[np.int32]) -> tuple[float, float]:
    """Return the mean cross-entropy and what its own operations round."""
    V = logits.shape[-1]
    shifted = logits - logits.max(axis=-1, keepdims=True)
    p = np.exp(shifted)
    z = p.sum(axis=-1, keepdims=True)
    target = np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    loss = np.log(z[..., 0]) - target
    of_sum = (p / z * (u * np.abs(shifted) + gamma(FUNCTION))).sum(axis=-1) + gamma(V)
    of_target = 2 * u * np.abs(target) + gamma(2 + FUNCTION)
    of_log = FUNCTION * u * (np.abs(loss) + np.abs(np.log(z[..., 0]))) + u * np.abs(loss)
    return float(loss.mean()), float((of_sum + of_target + of_log).mean() + gamma(targets.size + 1) * loss.mean())
