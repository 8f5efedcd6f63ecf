"""Cases of every kernel: sizes, values and threads that the models of the records don't have.

``kernels.def`` declares each kernel's arguments with their shapes; here is how the letters of these are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from starpullm.binding import declarations
from starpullm.checks.kernels.draw_case import GARBAGE_BITS, SUM_CONTINUES, SUM_FROM_ZERO, Buffer, Draw

KernelArguments = Mapping[str, Any]
"""Buffers or None, numbers, and a tuple for AdamW's options, by the names of the parameters."""

Sizes = Mapping[str, Any]
"""Numbers by the letters of shapes and by the names of the parameters that are no arrays; V is the limit of indices."""


@dataclass(frozen=True)
class KernelCase:
    """One call of a kernel: its arguments, its team, and the second-level cache that blocks are cut for.

    ``l2_cache`` 0: this machine's. ``values`` says what kind most of the inputs' values are of.
    """

    kernel: str
    number: int
    arguments: KernelArguments
    threads: int
    l2_cache: int
    values: str

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{name}={value}" for name, value in self.arguments.items() if not isinstance(value, Buffer) and value != ()
        )
        blocks = f"blocks for a cache of {self.l2_cache} bytes, " if self.l2_cache else ""
        team = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"case {self.number} ({sizes}; {team}, {blocks}{self.values} values)"


def make_case(kernel: str, seed: int, number: int) -> KernelCase:
    """Return the case of a number, from 0 on; it is the same for the same seed, whatever other cases are made."""
    draw = Draw(seed, list(CASES).index(kernel), number)
    parameters, cases = declared_kernels()[kernel], CASES[kernel]
    sizes = cases.sizes(draw)
    start = draw.start() if any(parameter.type == "sum_start" for parameter in parameters) else SUM_FROM_ZERO
    arguments = {parameter.name: _argument(draw, parameter, cases, sizes, start) for parameter in parameters}
    cases.adjust(draw, arguments)
    return KernelCase(kernel, number, arguments, draw.threads(), draw.l2_cache, draw.values)


class Parameter(NamedTuple):
    """A parameter of a kernel; the shape, in letters, is None for what is no array."""

    is_input: bool
    type: str
    name: str
    shape: tuple[str, ...] | None


@cache
def product_kernels() -> frozenset[str]:
    """Return the kernels with sums of products, which can be fused."""
    return frozenset(re.findall(r"PRODUCT_KERNEL\((\w+),\s", declarations.source("kernels.def", "src/kernels")))


@cache
def declared_kernels() -> dict[str, list[Parameter]]:
    """Return the parameters of each kernel, in the order of kernels.def, but its team."""
    text = " ".join(declarations.source("kernels.def", "src/kernels").split())
    kernels: dict[str, list[Parameter]] = {}
    for kernel, parameters in re.findall(r"KERNEL\((\w+), \((.*?), struct team team\)\)", text):
        shapes = {
            name: tuple(shape.split(",")) for name, shape in re.findall(r"(\w+) /\* \(([\w,]+)\) \*/", parameters)
        }
        declared = declarations.kernel_parameters(re.sub(r"/\*.*?\*/", "", parameters))
        kernels[kernel] = [
            Parameter(parameter.constant, parameter.type, parameter.name, shapes.get(parameter.name))
            for parameter in declared
        ]
    return kernels


_ALWAYS_CONTINUE: Final = ("dwte", "sum", "params", "m", "v")
"""Outputs that are always read."""


def _argument(draw: Draw, parameter: Parameter, cases: KernelCases, sizes: Sizes, start: int) -> Any:
    if parameter.type == "sum_start":
        return start
    if parameter.shape is None:
        return sizes[parameter.name]
    if parameter.name in cases.missing and draw.below(cases.missing[parameter.name]) == 0:
        return None
    shape = [_length(size, sizes) for size in parameter.shape]
    if parameter.type == "int32_t":
        return draw.indices(sizes["V"], *shape)
    if parameter.is_input:
        return draw.input(*shape)
    return draw.output(SUM_CONTINUES if parameter.name in _ALWAYS_CONTINUE else start, *shape)


def _length(size: str, sizes: Sizes) -> int:
    """Return a length such as ``C``, ``3C`` or ``1``."""
    letter = size.lstrip("0123456789")
    return int(size.removesuffix(letter) or 1) * int(sizes[letter] if letter else 1)


def _tile(draw: Draw, rows: int) -> Sizes:
    """Return the first row and the number of rows of a tile, in every other case all."""
    first = draw.below(rows) if draw.below(2) else 0
    return {"first": first, "rows": 1 + draw.below(rows - first) if first else rows}


def _encoder_forward(draw: Draw) -> Sizes:
    B, T, C = draw.sizes(3, 100_000)
    return {"B": B, "T": T, "C": C, "V": draw.size(), "maxT": T + draw.below(3)}


def _encoder_backward(draw: Draw) -> Sizes:
    B, T, C = draw.sizes(3, 100_000)
    V = 1 + draw.below(B * T)
    return {"B": B, "T": T, "C": C, "V": V, "maxT": T + draw.below(3), **_tile(draw, V)}


def _layernorm(draw: Draw) -> Sizes:
    return dict(zip(("N", "C"), draw.sizes(2, 50_000), strict=True))


def _matmul(draw: Draw) -> Sizes:
    """Draw sizes; the cases of number 31 mod 32 are above every block in all three."""
    sizes = [257 + draw.below(100) for _ in range(3)] if draw.number % 32 == 31 else draw.sizes(3, 1_000_000)
    return dict(zip(("N", "C", "OC"), sizes, strict=True))


def _matmul_forward(draw: Draw) -> Sizes:
    """Draw sizes; in two cases C is so large that less than a block of B or a micro-panel is packed at a time."""
    if draw.number == 40:
        return {"N": 800 + draw.below(20), "C": 5600 + draw.below(20), "OC": 10 + draw.below(5)}
    if draw.number == 41:
        return {"N": 40 + draw.below(20), "C": 140_000 + draw.below(20), "OC": 1 + draw.below(5)}
    return _matmul(draw)


def _matmul_backward_weight(draw: Draw) -> Sizes:
    sizes = _matmul(draw)
    return {**sizes, **_tile(draw, sizes["OC"])}


_SMALL_HEADS: Final = (3, 4, 8, 12, 13, 16, 24, 31, 32, 36, 48, 64, 65, 96, 128)
"""Head sizes: multiples of each level's vectors and micro-tiles, and others."""


def _attention(draw: Draw) -> Sizes:
    B, T, NH, head = _heads(draw)
    return {"B": B, "T": T, "C": NH * head, "NH": NH}


def _heads(draw: Draw) -> tuple[int, int, int, int]:
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


def _elements(draw: Draw) -> Sizes:
    return {"count": draw.count()}


def _logits(draw: Draw) -> Sizes:
    """Return V with padding or without."""
    N, V = draw.sizes(2, 30_000)
    return {"N": N, "V": V, "Vp": V + draw.below(130) * draw.below(2)}


def _mean_loss(draw: Draw) -> Sizes:
    return {"N": draw.count(), "divisor": float(draw.below(2) * (1 + draw.below(100_000)))}


def _adamw(draw: Draw) -> Sizes:
    betas = (0.9, 0.999, 0.95, 0.5, 0.0)
    rate, decay = 1e-4 * (1 + draw.below(50)), (0.0, 0.1)[draw.below(2)]
    options = (rate, betas[draw.below(5)], betas[draw.below(5)], (1e-8, 1e-5)[draw.below(2)], decay)
    return {"count": draw.count(), "options": options, "step": 1 + draw.below((20, 20_000_000)[draw.below(2)])}


def _spread_scores(draw: Draw, arguments: KernelArguments) -> None:
    """Let exponentials have all magnitudes, or let scores overflow: all exponentials of a row may be 0 or NaN."""
    with np.errstate(all="ignore"):
        arguments["qkv"].array()[...] *= np.float32((1e18, 8, 8, 1, 1, 1, 1, 1)[draw.below(8)])


def _spread_inputs(draw: Draw, arguments: KernelArguments) -> None:
    """Let more inputs have the magnitudes between which tanh becomes 1 and cosh overflows."""
    with np.errstate(all="ignore"):
        arguments["inp"].array()[...] *= np.float32((8, 1, 1, 1)[draw.below(4)])


def _spoil_past_the_edge(draw: Draw, arguments: KernelArguments) -> None:
    """Put garbage where the forward kernel leaves +0, past the causal edge: it shows whether the sums keep off it."""
    arguments["att"].array().view(np.uint32)[..., ~np.tri(arguments["T"], dtype=bool)] = GARBAGE_BITS


def _lower_logits(draw: Draw, arguments: KernelArguments) -> None:
    """Put garbage into the padding, and seldom all logits below where the search for the largest starts from."""
    logits = arguments["logits"].array()
    if draw.below(8) == 0:
        with np.errstate(all="ignore"):
            logits[...] = np.float32(-10000) - np.float32(100) * np.abs(logits)
    logits.view(np.uint32)[:, arguments["V"] :] = GARBAGE_BITS


def _without_sign(draw: Draw, arguments: KernelArguments) -> None:
    np.abs(arguments["v"].array(), out=arguments["v"].array())


def _as_drawn(draw: Draw, arguments: KernelArguments) -> None:
    """Leave the values alone."""


class KernelCases(NamedTuple):
    """How many cases of a kernel are compared, how their sizes are drawn, and what is done to their values.

    ``missing`` are arrays that may be NULL, and are once in so many cases.
    """

    number: int
    sizes: Callable[[Draw], Sizes]
    adjust: Callable[[Draw, KernelArguments], None] = _as_drawn
    missing: Mapping[str, int] = {}


CASES: Final[dict[str, KernelCases]] = {
    "encoder_forward": KernelCases(40, _encoder_forward),
    "layernorm_forward": KernelCases(120, _layernorm),
    "matmul_forward": KernelCases(128, _matmul_forward, missing={"bias": 2}),
    "attention_forward": KernelCases(96, _attention, _spread_scores),
    "residual_forward": KernelCases(40, _elements),
    "gelu_forward": KernelCases(96, _elements, _spread_inputs),
    "softmax_forward": KernelCases(128, _logits, _lower_logits),
    "crossentropy_forward": KernelCases(40, _logits),
    "mean_loss": KernelCases(40, _mean_loss),
    "crossentropy_softmax_backward": KernelCases(96, _logits),
    "matmul_backward_input": KernelCases(128, _matmul),
    "matmul_backward_weight": KernelCases(128, _matmul_backward_weight, missing={"dbias": 2}),
    "layernorm_backward_input": KernelCases(120, _layernorm),
    "layernorm_backward_weight": KernelCases(120, _layernorm),
    "residual_backward": KernelCases(40, _elements),
    "gelu_backward": KernelCases(96, _elements, _spread_inputs),
    "attention_backward": KernelCases(96, _attention, _spoil_past_the_edge),
    "encoder_backward": KernelCases(64, _encoder_backward, missing={"dwpe": 4}),
    "gradient_add": KernelCases(40, _elements),
    "adamw_update": KernelCases(96, _adamw, _without_sign),
}
"""Of every kernel of the library, in the order of its list."""
