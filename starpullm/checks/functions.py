"""Whose expf, tanhf, coshf, logf and powf an llm.c calls: its values beside the plain kernels' on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.kernels import Kernel
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import SETTINGS, GoldenRecord

Tensors = Mapping[str, NDArray[np.float32]]


class Compared(NamedTuple):
    """A tensor that a function was used for; how many elements the library's own function and libm's don't give."""

    function: str
    tensor: str
    elements: int
    not_own: int
    not_platform: int

    def __str__(self) -> str:
        return (
            f"{self.function} (of {self.elements} elements of {self.tensor}, {self.not_own} aren't those of the "
            f"correctly rounded function and {self.not_platform} not those of this machine's libm)"
        )


def compare_pass(acts: Tensors, dacts: Tensors, targets: NDArray[np.int32], vocab_size: int) -> Iterator[Compared]:
    """Compare activations and their gradients of a batch, with the layer dimension first."""
    layers, B, NH, T, _ = acts["att"].shape
    of_heads = {"B": layers * B, "T": T, "C": acts["encoded"].shape[-1], "NH": NH}
    of_logits = {"N": B * T, "V": vocab_size, "Vp": acts["probs"].shape[-1], "targets": targets}
    forward = {"inp": acts["fch"], "out": acts["fch_gelu"], "count": acts["fch"].size}
    backward = {**forward, "dout": dacts["fch_gelu"], "dinp": dacts["fch"]}
    yield _compare("expf", "activations/att", "attention_forward", "att", {**acts, **of_heads, "out": acts["atty"]})
    yield _compare("expf", "activations/probs", "softmax_forward", "probs", {**acts, **of_logits})
    yield _compare("logf", "activations/losses", "crossentropy_forward", "losses", {**acts, **of_logits})
    yield _compare("tanhf", "activations/fch_gelu", "gelu_forward", "out", forward)
    yield _compare("tanhf or coshf", "activation_grads/fch", "gelu_backward", "dinp", backward)


def compare_update(before: Tensors, params: NDArray[np.float32], settings: GoldenRecord, step: int) -> Compared:
    """Compare wpe after an update, which counts from 1; m and v are 0 if there are none before."""
    zeros = {"m": np.zeros_like(params), "v": np.zeros_like(params)}
    options = tuple(getattr(settings, name) for name in SETTINGS)
    arguments = {**zeros, **before, "count": params.size, "options": options, "step": step}
    return _compare("powf", "params/wpe", "adamw_update", "params", arguments, params)


def uses_platform(library: object, compared: Sequence[Compared]) -> bool:
    """Return whether the functions are those of the platform's libm, where they aren't also the library's own.

    `InvalidArgumentError` is raised for a function that is neither, and for functions of both kinds.
    """
    other = [of for of in compared if of.not_own]
    strange = [of for of in compared if of.not_platform]
    if other and strange:
        neither = [of for of in other if of.not_platform]
        found = str(neither[0]) if neither else f"{other[0]} and {strange[0]}"
        raise InvalidArgumentError(
            f"{library}: found {found}, expected all functions correctly rounded or all of this machine's libm: was it "
            "built as docs/numerics.md says?"
        )
    return bool(other)


def _compare(
    function: str,
    tensor: str,
    kernel: str,
    output: str,
    arguments: Mapping[str, Any],
    values: NDArray[np.float32] | None = None,
) -> Compared:
    """Compare values, by default those that the arguments have as output, with what both kernels compute."""
    values = arguments[output] if values is None else values
    differ = []
    for level in ("ref", "platform"):
        compute = Kernel(level, kernel)
        outputs = {of.name: arguments[of.name].copy() for of in compute.parameters if of.output}
        compute({**arguments, **outputs})
        found = outputs[output]
        same = (found.view(np.uint32) == values.view(np.uint32)) | (np.isnan(found) & np.isnan(values))
        differ.append(int(np.count_nonzero(~same)))
    return Compared(function, tensor, values.size, *differ)
