"""The arithmetic contract (numerics.md) written down once more, in NumPy, to be read against it line by line.

test_strict_reference.py calls it to show, without native code, that contract, generator and records agree.

Every NumPy operation on float32 arrays is one binary32 rounding per element. Ordered sums are explicit loops
over the summation index, vectorised across independent outputs; NumPy's own sums are never used. Outputs that
accumulate come first and are changed in place. Shapes use the letters of numerics.md; N = B·T.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from starpullm.files.model import ModelConfig, parameter_shapes
from starpullm.golden.records import activation_shapes, split_layers

F32 = np.float32
Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Tensors = dict[str, Floats]

LAYERNORM_EPS = F32(1e-5)
LOWEST_LOGIT = F32(-10000)
GELU_CUBE = F32(0.044715)
GELU_SCALE = np.sqrt(F32(2.0 / math.pi))


# ---- libm ----

_libm = ctypes.CDLL(ctypes.util.find_library("m"))


def libm(function: str, *arguments: Floats) -> Floats:
    """Apply the platform's expf, tanhf, coshf, logf or powf to every element."""
    call = _libm[function]
    call.argtypes = [ctypes.c_float] * len(arguments)
    call.restype = ctypes.c_float
    elementwise = np.frompyfunc(call, len(arguments), 1)
    with np.errstate(all="ignore"):  # exp overflows and log(-1) is NaN, as they should
        return np.asarray(elementwise(*arguments)).astype(F32)


# ---- Sums ----


def ordered_sum(start: Floats, terms: Iterable[Floats]) -> Floats:
    """Add the terms one at a time, in their order, to `start`."""
    total = start
    for term in terms:
        total = total + term
    return total


def columns(array: Floats) -> Floats:
    """Bring the last dimension first, so that iterating runs over it."""
    return np.moveaxis(array, -1, 0)


# ---- Encoder ----


def encoder_forward(tokens: Ids, wte: Floats, wpe: Floats) -> Floats:
    """(B,T) ids to (B,T,C)."""
    return wte[tokens] + wpe[: tokens.shape[1]]


def encoder_backward(dwte: Floats, dwpe: Floats, dout: Floats, tokens: Ids) -> None:
    """Accumulate into dwte (Vp,C) and dwpe (maxT,C), over n ascending."""
    for row_tokens, row_dout in zip(tokens, dout, strict=True):
        for t, (token, gradient) in enumerate(zip(row_tokens, row_dout, strict=True)):
            dwte[token] += gradient
            dwpe[t] += gradient


# ---- Layernorm: inp (B,T,C), weight and bias (C), mean and rstd (B,T) ----


def layernorm_forward(inp: Floats, weight: Floats, bias: Floats) -> tuple[Floats, Floats, Floats]:
    """Return out (B,T,C), mean and rstd."""
    channels = F32(inp.shape[-1])
    zero = np.zeros(inp.shape[:-1], F32)
    mean = ordered_sum(zero, columns(inp)) / channels
    shifted = inp - mean[..., None]
    variance = ordered_sum(zero, columns(shifted * shifted)) / channels
    rstd = F32(1) / np.sqrt(variance + LAYERNORM_EPS)
    out = (rstd[..., None] * shifted) * weight + bias
    return out, mean, rstd


def layernorm_backward(
    dinp: Floats,
    dweight: Floats,
    dbias: Floats,
    dout: Floats,
    inp: Floats,
    weight: Floats,
    mean: Floats,
    rstd: Floats,
) -> None:
    """Accumulate into dinp (B,T,C), dweight and dbias (C)."""
    channels = F32(inp.shape[-1])
    zero = np.zeros(mean.shape, F32)
    norm = (inp - mean[..., None]) * rstd[..., None]
    dnorm = weight * dout
    dnorm_mean = ordered_sum(zero, columns(dnorm)) / channels
    dnorm_norm_mean = ordered_sum(zero, columns(dnorm * norm)) / channels
    dbias[...] = ordered_sum(dbias, rows(dout))
    dweight[...] = ordered_sum(dweight, rows(norm * dout))
    dinp += ((F32(0) + dnorm - dnorm_mean[..., None]) - norm * dnorm_norm_mean[..., None]) * rstd[..., None]


# ---- Matmul: inp (B,T,C), weight (OC,C), bias (OC), out (B,T,OC) ----


def rows(array: Floats) -> Floats:
    """See (B,T,C) as (N,C)."""
    return array.reshape(-1, array.shape[-1])


def matmul_forward(inp: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """Return out; every element is the ordered sum over C, from the bias."""
    start = np.zeros((*inp.shape[:-1], weight.shape[0]), F32)
    if bias is not None:
        start[...] = bias
    terms = (x[..., None] * w for x, w in zip(columns(inp), columns(weight), strict=True))
    return ordered_sum(start, terms)


def matmul_backward_input(dinp: Floats, dout: Floats, weight: Floats) -> None:
    """Accumulate into dinp, over the output channels ascending."""
    for gradient, w in zip(columns(dout), weight, strict=True):
        dinp += w * gradient[..., None]


def matmul_backward_weight(dweight: Floats, dbias: Floats | None, dout: Floats, inp: Floats) -> None:
    """Accumulate into dweight and dbias, over n ascending."""
    for gradient, x in zip(rows(dout), rows(inp), strict=True):
        dweight += x * gradient[:, None]
        if dbias is not None:
            dbias += gradient


# ---- Attention: qkv (B,T,3C), preatt and att (B,NH,T,T), out (B,T,C) ----


def split_heads(array: Floats, heads: int) -> Floats:
    """See (B,T,C) as (B,NH,T,hs)."""
    batch, length, channels = array.shape
    return array.reshape(batch, length, heads, channels // heads).transpose(0, 2, 1, 3)


def join_heads(array: Floats) -> Floats:
    """Bring (B,NH,T,hs) back to (B,T,C)."""
    batch, heads, length, head_size = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, length, heads * head_size)


def attention_forward(qkv: Floats, heads: int) -> tuple[Floats, Floats, Floats]:
    """Return out, preatt and att."""
    query, key, value = (split_heads(part, heads) for part in np.split(qkv, 3, axis=-1))
    batch, _, length, head_size = query.shape
    scale = F32(1.0 / float(np.sqrt(F32(head_size))))
    causal = np.tri(length, dtype=bool)

    terms = (q[..., :, None] * k[..., None, :] for q, k in zip(columns(query), columns(key), strict=True))
    preatt = ordered_sum(np.zeros((batch, heads, length, length), F32), terms) * scale
    preatt = np.where(causal, preatt, F32(0))
    highest = np.where(causal, preatt, LOWEST_LOGIT).max(axis=-1, initial=LOWEST_LOGIT)
    exponential = np.where(causal, libm("expf", preatt - highest[..., None]), F32(0))

    total = np.zeros((batch, heads, length), F32)
    for t2 in range(length):
        total[..., t2:] += exponential[..., t2:, t2]
    inverse = np.divide(F32(1), total, out=np.zeros_like(total), where=total != 0)
    att = exponential * inverse[..., None]

    out = np.zeros_like(query)
    for t2 in range(length):
        out[:, :, t2:] += att[:, :, t2:, t2, None] * value[:, :, t2, None, :]
    return join_heads(out), preatt, att


def attention_backward(dqkv: Floats, dpreatt: Floats, datt: Floats, dout: Floats, qkv: Floats, att: Floats) -> None:
    """Accumulate into dqkv, dpreatt and datt."""
    heads, length = att.shape[1:3]
    query, key, value = (split_heads(part, heads) for part in np.split(qkv, 3, axis=-1))
    dquery, dkey, dvalue = (split_heads(part, heads).copy() for part in np.split(dqkv, 3, axis=-1))
    gradient = split_heads(dout, heads)
    scale = F32(1) / np.sqrt(F32(query.shape[-1]))
    causal = np.tri(length, dtype=bool)
    same = np.eye(length, dtype=F32)

    # (1) through the weighted sum of values
    for v, g in zip(columns(value), columns(gradient), strict=True):
        datt += np.where(causal, v[..., None, :] * g[..., :, None], F32(0))
    for t in range(length):
        dvalue[:, :, : t + 1] += att[:, :, t, : t + 1, None] * gradient[:, :, t, None, :]

    # (2) through the softmax
    for t in range(length):
        seen = slice(0, t + 1)
        for t2 in range(t + 1):
            local = att[:, :, t, t2, None] * (same[t2, seen] - att[:, :, t, seen])
            dpreatt[:, :, t, seen] += local * datt[:, :, t, t2, None]

    # (3) through the product of queries and keys
    for t2 in range(length):
        dquery[:, :, t2:] += (key[:, :, t2, None, :] * dpreatt[:, :, t2:, t2, None]) * scale
    for t in range(length):
        dkey[:, :, : t + 1] += (query[:, :, t, None, :] * dpreatt[:, :, t, : t + 1, None]) * scale

    dqkv[...] = np.concatenate([join_heads(part) for part in (dquery, dkey, dvalue)], axis=-1)


# ---- Elementwise ----


def gelu_forward(x: Floats) -> Floats:
    """Return the tanh approximation of GELU."""
    cube = GELU_CUBE * x * x * x
    return (F32(0.5) * x) * (F32(1) + libm("tanhf", GELU_SCALE * (x + cube)))


def gelu_backward(dinp: Floats, dout: Floats, x: Floats) -> None:
    """Accumulate into dinp."""
    cube = GELU_CUBE * x * x * x
    argument = GELU_SCALE * (x + cube)
    tanh = libm("tanhf", argument)
    cosh = libm("coshf", argument)
    sech = F32(1) / (cosh * cosh)
    slope = F32(1) + (F32(3) * GELU_CUBE) * x * x
    dinp += (F32(0.5) * (F32(1) + tanh) + (x * F32(0.5) * sech * GELU_SCALE) * slope) * dout


def residual_forward(a: Floats, b: Floats) -> Floats:
    """Return the sum."""
    return a + b


def residual_backward(da: Floats, db: Floats, dout: Floats) -> None:
    """Accumulate into both."""
    da += dout
    db += dout


# ---- Loss: logits and probs (B,T,Vp), losses (B,T) ----


def softmax_forward(logits: Floats, vocab_size: int) -> Floats:
    """Return the probabilities; 0 for the padding."""
    real = logits[..., :vocab_size]
    highest = real.max(axis=-1, initial=LOWEST_LOGIT)
    exponential = libm("expf", real - highest[..., None])
    total = ordered_sum(np.zeros(highest.shape, F32), columns(exponential))
    probs = np.zeros_like(logits)
    probs[..., :vocab_size] = exponential / total[..., None]
    return probs


def crossentropy_forward(probs: Floats, targets: Ids) -> Floats:
    """Return the losses."""
    return -libm("logf", np.take_along_axis(probs, targets[..., None], axis=-1)[..., 0])


def mean_loss(losses: Floats) -> np.float32:
    """Return the ordered sum over n, divided by N."""
    total = F32(0)
    for loss in losses.reshape(-1):
        total = total + loss
    return total / F32(losses.size)


def crossentropy_softmax_backward(
    dlogits: Floats, dlosses: Floats, probs: Floats, targets: Ids, vocab_size: int
) -> None:
    """Accumulate into dlogits; the padding stays as it is."""
    indicator = (np.arange(vocab_size) == targets[..., None]).astype(F32)
    dlogits[..., :vocab_size] += (probs[..., :vocab_size] - indicator) * dlosses[..., None]


# ---- Update ----


@dataclass(frozen=True)
class AdamW:
    """Settings of the update."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


def adamw_update(param: Floats, m: Floats, v: Floats, grad: Floats, settings: AdamW, step: int) -> None:
    """Change param, m and v in place; step counts from 1."""
    one = F32(1)
    learning_rate, beta1, beta2 = F32(settings.learning_rate), F32(settings.beta1), F32(settings.beta2)
    eps, weight_decay = F32(settings.eps), F32(settings.weight_decay)
    power1 = libm("powf", np.array([beta1], F32), np.array([step], F32))
    power2 = libm("powf", np.array([beta2], F32), np.array([step], F32))
    m[...] = beta1 * m + (one - beta1) * grad
    v[...] = beta2 * v + ((one - beta2) * grad) * grad
    m_hat = m / (one - power1)
    v_hat = v / (one - power2)
    param -= learning_rate * (m_hat / (np.sqrt(v_hat) + eps) + weight_decay * param)


# ---- The whole ----


def zeros(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Return tensors of +0.0 by the names of the records, those of a layer as `qkvw[1]`."""
    return dict(split_layers({name: np.zeros(shape, F32) for name, shape in shapes.items()}))


class StrictModel:
    """GPT-2 with gradients and moments; every group of tensors goes by the names of the records."""

    def __init__(self, config: ModelConfig, parameters: Tensors, batch_size: int, seq_len: int) -> None:
        self.config = config
        self.layers = [f"[{layer}]" for layer in range(config.num_layers)]
        self.shapes = activation_shapes(config, batch_size, seq_len)
        self.params = dict(split_layers(parameters))
        self.m = zeros(parameter_shapes(config))
        self.v = zeros(parameter_shapes(config))
        self.grads: Tensors = {}
        self.activations: Tensors = {}
        self.activation_grads: Tensors = {}
        self.steps = 0

    def step(self, inputs: Ids, targets: Ids, settings: AdamW) -> np.float32:
        """Do forward, backward and update; return the mean loss."""
        self.forward(inputs, targets)
        self.backward(inputs, targets)
        self.update(settings)
        return mean_loss(self.activations["losses"])

    def forward(self, inputs: Ids, targets: Ids) -> None:
        """Fill the activations."""
        par = self.params
        act = self.activations = zeros(self.shapes)
        residual = act["encoded"] = encoder_forward(inputs, par["wte"], par["wpe"])
        for i in self.layers:
            act["ln1" + i], act["ln1_mean" + i], act["ln1_rstd" + i] = layernorm_forward(
                residual, par["ln1w" + i], par["ln1b" + i]
            )
            act["qkv" + i] = matmul_forward(act["ln1" + i], par["qkvw" + i], par["qkvb" + i])
            act["atty" + i], act["preatt" + i], act["att" + i] = attention_forward(
                act["qkv" + i], self.config.num_heads
            )
            act["attproj" + i] = matmul_forward(act["atty" + i], par["attprojw" + i], par["attprojb" + i])
            act["residual2" + i] = residual_forward(residual, act["attproj" + i])
            act["ln2" + i], act["ln2_mean" + i], act["ln2_rstd" + i] = layernorm_forward(
                act["residual2" + i], par["ln2w" + i], par["ln2b" + i]
            )
            act["fch" + i] = matmul_forward(act["ln2" + i], par["fcw" + i], par["fcb" + i])
            act["fch_gelu" + i] = gelu_forward(act["fch" + i])
            act["fcproj" + i] = matmul_forward(act["fch_gelu" + i], par["fcprojw" + i], par["fcprojb" + i])
            residual = act["residual3" + i] = residual_forward(act["residual2" + i], act["fcproj" + i])
        act["lnf"], act["lnf_mean"], act["lnf_rstd"] = layernorm_forward(residual, par["lnfw"], par["lnfb"])
        act["logits"] = matmul_forward(act["lnf"], par["wte"], None)
        act["probs"] = softmax_forward(act["logits"], self.config.vocab_size)
        act["losses"] = crossentropy_forward(act["probs"], targets)

    def backward(self, inputs: Ids, targets: Ids) -> None:
        """Fill the gradients of activations and parameters, which all start at +0.0."""
        par, act = self.params, self.activations
        dpar = self.grads = zeros(parameter_shapes(self.config))
        dact = self.activation_grads = zeros(self.shapes)
        residuals = ["encoded", *("residual3" + i for i in self.layers)]

        dact["losses"][...] = F32(1) / F32(targets.size)
        crossentropy_softmax_backward(dact["logits"], dact["losses"], act["probs"], targets, self.config.vocab_size)
        matmul_backward_input(dact["lnf"], dact["logits"], par["wte"])
        matmul_backward_weight(dpar["wte"], None, dact["logits"], act["lnf"])
        self._layernorm_backward(residuals[-1], "lnf", "")
        for layer in reversed(range(len(self.layers))):
            i = self.layers[layer]
            residual_backward(dact["residual2" + i], dact["fcproj" + i], dact[residuals[layer + 1]])
            self._matmul_backward("fch_gelu", "fcproj", "fcproj", i)
            gelu_backward(dact["fch" + i], dact["fch_gelu" + i], act["fch" + i])
            self._matmul_backward("ln2", "fc", "fch", i)
            self._layernorm_backward("residual2" + i, "ln2", i)
            residual_backward(dact[residuals[layer]], dact["attproj" + i], dact["residual2" + i])
            self._matmul_backward("atty", "attproj", "attproj", i)
            attention_backward(
                dact["qkv" + i],
                dact["preatt" + i],
                dact["att" + i],
                dact["atty" + i],
                act["qkv" + i],
                act["att" + i],
            )
            self._matmul_backward("ln1", "qkv", "qkv", i)
            self._layernorm_backward(residuals[layer], "ln1", i)
        encoder_backward(dpar["wte"], dpar["wpe"], dact["encoded"], inputs)

    def _matmul_backward(self, inp: str, weight: str, out: str, i: str) -> None:
        dact, dpar = self.activation_grads, self.grads
        matmul_backward_input(dact[inp + i], dact[out + i], self.params[weight + "w" + i])
        matmul_backward_weight(dpar[weight + "w" + i], dpar[weight + "b" + i], dact[out + i], self.activations[inp + i])

    def _layernorm_backward(self, inp: str, name: str, i: str) -> None:
        act, dact, dpar = self.activations, self.activation_grads, self.grads
        layernorm_backward(
            dact[inp],
            dpar[name + "w" + i],
            dpar[name + "b" + i],
            dact[name + i],
            act[inp],
            self.params[name + "w" + i],
            act[name + "_mean" + i],
            act[name + "_rstd" + i],
        )

    def update(self, settings: AdamW) -> None:
        """Change the parameters and their moments."""
        self.steps += 1
        for name, param in self.params.items():
            adamw_update(param, self.m[name], self.v[name], self.grads[name], settings, self.steps)
