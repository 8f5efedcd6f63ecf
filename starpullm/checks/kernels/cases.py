"""Cases of every kernel: sizes, values and threads that the models of the records don't have.

Size letters are those of ``native/src/kernels/kernels.def``. The names of a case's arguments are those of the kernel's
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from starpullm.checks.kernels.draw import GARBAGE_BITS, SUM_CONTINUES, Buffer, Draw

Arguments = Mapping[str, Any]
"""Buffers or None, numbers, and a tuple for AdamW's options, by the names of the parameters."""


@dataclass(frozen=True)
class Case:
    """One call of a kernel: its arguments, its team, and the caches (first, second level) that blocks are cut for.

    ``caches`` None: this machine's. ``values`` says what kind most of the inputs' values are of.
    """

    kernel: str
    number: int
    arguments: Arguments
    threads: int
    caches: tuple[int, int] | None
    values: str

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{name}={value}" for name, value in self.arguments.items() if not isinstance(value, Buffer) and value != ()
        )
        blocks = f"blocks for caches of {self.caches[0]} and {self.caches[1]} bytes, " if self.caches else ""
        team = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"case {self.number} ({sizes}; {team}, {blocks}{self.values} values)"


def make_case(kernel: str, seed: int, number: int) -> Case:
    """Return the case of a number; it is the same for the same seed, whatever other cases are made.

    Parameters
    ----------
    kernel
        One of `CASES`.
    seed
        Of all cases.
    number
        From 0 on.
    """
    draw = Draw(seed, list(CASES).index(kernel), number)
    arguments = CASES[kernel].draw(draw)
    return Case(kernel, number, arguments, draw.threads(), draw.caches, draw.values)


# ---- Encoder ----


def _encoder_forward(draw: Draw) -> Arguments:
    B, T, C = draw.sizes(3, 100_000)
    V, longest = draw.size(), T + draw.below(3)
    return {
        "out": draw.overwritten(B, T, C),
        "tokens": draw.indices(V, B, T),
        "wte": draw.input(V, C),
        "wpe": draw.input(longest, C),
        **{"B": B, "T": T, "C": C},
    }


def _tile(draw: Draw, of: int) -> tuple[int, int]:
    """Return the first row and the number of rows of a tile, in every other case all."""
    first = draw.below(of) if draw.below(2) else 0
    return first, 1 + draw.below(of - first) if first else of


def _encoder_backward(draw: Draw) -> Arguments:
    B, T, C = draw.sizes(3, 100_000)
    V, longest, start = 1 + draw.below(B * T), T + draw.below(3), draw.start()
    first, rows = _tile(draw, V)
    return {
        "dwte": draw.output(SUM_CONTINUES, rows, C),
        "dwpe": draw.output(start, longest, C) if draw.below(4) else None,
        "dout": draw.input(B, T, C),
        "tokens": draw.indices(V, B, T),
        **{"B": B, "T": T, "C": C, "maxT": longest, "first": first, "rows": rows, "dwpe_start": start},
    }


# ---- Layernorm ----


def _layernorm_forward(draw: Draw) -> Arguments:
    N, C = draw.sizes(2, 50_000)
    return {
        "out": draw.overwritten(N, C),
        "mean": draw.overwritten(N),
        "rstd": draw.overwritten(N),
        "inp": draw.input(N, C),
        "weight": draw.input(C),
        "bias": draw.input(C),
        **{"N": N, "C": C},
    }


def _layernorm_backward_input(draw: Draw) -> Arguments:
    (N, C), start = draw.sizes(2, 50_000), draw.start()
    return {
        "dinp": draw.output(start, N, C),
        "dout": draw.input(N, C),
        "inp": draw.input(N, C),
        "mean": draw.input(N),
        "rstd": draw.input(N),
        "weight": draw.input(C),
        **{"N": N, "C": C, "start": start},
    }


def _layernorm_backward_weight(draw: Draw) -> Arguments:
    (N, C), start = draw.sizes(2, 50_000), draw.start()
    return {
        "dweight": draw.output(start, C),
        "dbias": draw.output(start, C),
        "dout": draw.input(N, C),
        "inp": draw.input(N, C),
        "mean": draw.input(N),
        "rstd": draw.input(N),
        **{"N": N, "C": C, "start": start},
    }


# ---- Matmul ----


def _matmul_sizes(draw: Draw) -> list[int]:
    """Return N, C and OC. One case is above every block in all three, the cases of number 31 mod 32."""
    if draw.number % 32 == 31:
        return [257 + draw.below(100) for _ in range(3)]
    return draw.sizes(3, 1_000_000)


def _matmul_forward(draw: Draw) -> Arguments:
    N, C, OC = _matmul_sizes(draw)
    # So many columns C that less than a block of B's columns is packed at a time, or a single micro-panel.
    if draw.number == 40:
        N, C, OC = 800 + draw.below(20), 5600 + draw.below(20), 10 + draw.below(5)
    elif draw.number == 41:
        N, C, OC = 40 + draw.below(20), 140_000 + draw.below(20), 1 + draw.below(5)
    return {
        "out": draw.overwritten(N, OC),
        "inp": draw.input(N, C),
        "weight": draw.input(OC, C),
        "bias": draw.input(OC) if draw.below(2) else None,
        **{"N": N, "C": C, "OC": OC},
    }


def _matmul_backward_input(draw: Draw) -> Arguments:
    (N, C, OC), start = _matmul_sizes(draw), draw.start()
    return {
        "dinp": draw.output(start, N, C),
        "dout": draw.input(N, OC),
        "weight": draw.input(OC, C),
        **{"N": N, "C": C, "OC": OC, "start": start},
    }


def _matmul_backward_weight(draw: Draw) -> Arguments:
    (N, C, OC), start = _matmul_sizes(draw), draw.start()
    first, rows = _tile(draw, OC)
    return {
        "dweight": draw.output(start, rows, C),
        "dbias": draw.output(start, rows) if draw.below(2) else None,
        "dout": draw.input(N, OC),
        "inp": draw.input(N, C),
        **{"N": N, "C": C, "OC": OC, "first": first, "rows": rows, "start": start},
    }


# ---- Attention ----

_SMALL_HEADS: Final = (3, 4, 8, 12, 13, 16, 24, 31, 32, 36, 48, 64, 65, 96, 128)
"""Head sizes: multiples of each level's vectors and micro-tiles, and others."""


def _attention_sizes(draw: Draw) -> tuple[int, int, int, int]:
    """Return B, T, NH and the head size; once T is above the longest block of a sum, once the head size."""
    if draw.number in (32, 33):
        above, few = 769 + draw.below(30), 1 + draw.below(20)
        return 1, *((above, 1, few) if draw.number == 32 else (few, 2, above))
    if draw.number % 8 == 7:  # above two panels
        return 1, (500 if draw.number % 32 == 31 else 200) + draw.below(20), 1, 1 + draw.below(70)
    if draw.number % 4 == 2:
        head = _SMALL_HEADS[draw.below(len(_SMALL_HEADS))]
        return 1 + draw.below(2), 1 + draw.below(70), 1 + draw.below(3), head
    while True:
        B, T, NH, head = (draw.size() for _ in range(4))
        if B * T * NH * head <= 100_000 and B * NH * T * T * (T // 3 + 3 * head) <= 2_000_000:
            return B, T, NH, head


def _attention_forward(draw: Draw) -> Arguments:
    B, T, NH, head = _attention_sizes(draw)
    qkv = draw.input(B, T, 3 * NH * head)
    if draw.below(8) == 0:  # scores that overflow: all exponentials of a row may be 0 or NaN
        with np.errstate(all="ignore"):
            qkv.array()[...] *= np.float32(1e18)
    return {
        "out": draw.overwritten(B, T, NH * head),
        "preatt": draw.overwritten(B, NH, T, T),
        "att": draw.overwritten(B, NH, T, T),
        "qkv": qkv,
        **{"B": B, "T": T, "C": NH * head, "NH": NH},
    }


def _attention_backward(draw: Draw) -> Arguments:
    B, T, NH, head = _attention_sizes(draw)
    att = draw.input(B, NH, T, T)
    # The forward kernel leaves +0 past the causal edge; garbage shows whether the sums keep off it.
    att.array().view(np.uint32)[..., ~np.tri(T, dtype=bool)] = GARBAGE_BITS
    return {
        "dqkv": draw.overwritten(B, T, 3 * NH * head),
        "dpreatt": draw.overwritten(B, NH, T, T),
        "datt": draw.overwritten(B, NH, T, T),
        "dout": draw.input(B, T, NH * head),
        "qkv": draw.input(B, T, 3 * NH * head),
        "att": att,
        **{"B": B, "T": T, "C": NH * head, "NH": NH},
    }


# ---- Element by element ----


def _residual_forward(draw: Draw) -> Arguments:
    count = draw.count()
    return {"out": draw.overwritten(count), "a": draw.input(count), "b": draw.input(count), "count": count}


def _residual_backward(draw: Draw) -> Arguments:
    count, start = draw.count(), draw.start()
    outputs = {"da": draw.output(start, count), "db": draw.output(start, count)}
    return {**outputs, "dout": draw.input(count), "count": count, "start": start}


def _gelu_forward(draw: Draw) -> Arguments:
    count = draw.count()
    return {"out": draw.overwritten(count), "inp": draw.input(count), "count": count}


def _gelu_backward(draw: Draw) -> Arguments:
    count, start = draw.count(), draw.start()
    inputs = {"dout": draw.input(count), "inp": draw.input(count)}
    return {"dinp": draw.output(start, count), **inputs, "count": count, "start": start}


def _gradient_add(draw: Draw) -> Arguments:
    count = draw.count()
    return {"sum": draw.output(SUM_CONTINUES, count), "term": draw.input(count), "count": count}


def _adamw_update(draw: Draw) -> Arguments:
    count, betas = draw.count(), (0.9, 0.999, 0.95, 0.5, 0.0)
    v = draw.output(SUM_CONTINUES, count)
    np.abs(v.array(), out=v.array())
    rate, decay = 1e-4 * (1 + draw.below(50)), (0.0, 0.1)[draw.below(2)]
    options = (rate, betas[draw.below(5)], betas[draw.below(5)], (1e-8, 1e-5)[draw.below(2)], decay)
    return {
        "params": draw.output(SUM_CONTINUES, count),
        "m": draw.output(SUM_CONTINUES, count),
        "v": v,
        "grads": draw.input(count),
        **{"count": count, "options": options, "step": 1 + draw.below((20, 20_000_000)[draw.below(2)])},
    }


# ---- Loss ----


def _rows(draw: Draw) -> tuple[int, int, int]:
    """Return N, V, and V with padding or without."""
    N, V = draw.sizes(2, 30_000)
    return N, V, V + draw.below(130) * draw.below(2)


def _softmax_forward(draw: Draw) -> Arguments:
    N, V, Vp = _rows(draw)
    logits = draw.input(N, Vp)
    if draw.below(8) == 0:  # below the value that the search for the largest starts from
        with np.errstate(all="ignore"):
            logits.array()[...] = np.float32(-10000) - np.float32(100) * np.abs(logits.array())
    logits.array().view(np.uint32)[:, V:] = GARBAGE_BITS
    return {"probs": draw.overwritten(N, Vp), "logits": logits, "N": N, "V": V, "Vp": Vp}


def _crossentropy_forward(draw: Draw) -> Arguments:
    N, V, Vp = _rows(draw)
    inputs = {"probs": draw.input(N, Vp), "targets": draw.indices(V, N)}
    return {"losses": draw.overwritten(N), **inputs, "N": N, "Vp": Vp}


def _mean_loss(draw: Draw) -> Arguments:
    N, start, divisor = draw.count(), draw.start(), float(draw.below(2) * (1 + draw.below(100_000)))
    return {"mean": draw.output(start, 1), "losses": draw.input(N), "N": N, "divisor": divisor, "start": start}


def _crossentropy_softmax_backward(draw: Draw) -> Arguments:
    (N, V, Vp), start = _rows(draw), draw.start()
    return {
        "dlogits": draw.output(start, N, Vp),
        "dlosses": draw.input(N),
        "probs": draw.input(N, Vp),
        "targets": draw.indices(V, N),
        **{"N": N, "V": V, "Vp": Vp, "start": start},
    }


class Cases(NamedTuple):
    """How a kernel's cases are drawn, and how many of them are compared."""

    draw: Callable[[Draw], Arguments]
    number: int


CASES: Final[dict[str, Cases]] = {
    "encoder_forward": Cases(_encoder_forward, 40),
    "layernorm_forward": Cases(_layernorm_forward, 120),
    "matmul_forward": Cases(_matmul_forward, 128),
    "attention_forward": Cases(_attention_forward, 96),
    "residual_forward": Cases(_residual_forward, 40),
    "gelu_forward": Cases(_gelu_forward, 96),
    "softmax_forward": Cases(_softmax_forward, 128),
    "crossentropy_forward": Cases(_crossentropy_forward, 40),
    "mean_loss": Cases(_mean_loss, 40),
    "crossentropy_softmax_backward": Cases(_crossentropy_softmax_backward, 96),
    "matmul_backward_input": Cases(_matmul_backward_input, 128),
    "matmul_backward_weight": Cases(_matmul_backward_weight, 128),
    "layernorm_backward_input": Cases(_layernorm_backward_input, 120),
    "layernorm_backward_weight": Cases(_layernorm_backward_weight, 120),
    "residual_backward": Cases(_residual_backward, 40),
    "gelu_backward": Cases(_gelu_backward, 96),
    "attention_backward": Cases(_attention_backward, 96),
    "encoder_backward": Cases(_encoder_backward, 64),
    "gradient_add": Cases(_gradient_add, 40),
    "adamw_update": Cases(_adamw_update, 96),
}
"""Of every kernel of the library, in the order of its list."""
