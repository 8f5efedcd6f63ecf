"""Whose expf, tanhf, coshf, logf and powf an llm.c calls: its values beside the plain kernels' on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.kernels import Kernel, level_name
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import SETTINGS, GoldenRecord

Tensors = Mapping[str, NDArray[np.float32]]


class Compared(NamedTuple):
    """A tensor that a function was used for; how many elements the library's own function and libm's don't give."""

    function: str
    tensor: str
    elements: int
    not_local: int
    not_platform: int

    def __str__(self) -> str:
        return (
            f"{self.function} (of {self.elements} elements of {self.tensor}, {self.not_local} aren't those of the "
            f"correctly rounded function and {self.not_platform} not those of this machine's libm)"
        )


def compare_step(
    groups: Mapping[str, Tensors], before: Tensors, targets: NDArray[np.int32], settings: GoldenRecord, step: int
) -> Iterator[Compared]:
    """Compare what a step, from 1, has computed; ``before`` are wpe's params and, from the second step, its m and v."""
    plain = level_name("ref", settings.arithmetic)
    acts, dacts, params = groups["activations"], groups["activation_grads"], groups["params"]["wpe"]
    layers, B, NH, T, _ = acts["att"].shape
    heads = {"B": layers * B, "T": T, "C": acts["encoded"].shape[-1], "NH": NH, "out": acts["atty"]}
    logits = {"N": B * T, "V": settings.model.vocab_size, "Vp": acts["probs"].shape[-1], "targets": targets}
    forward = {"inp": acts["fch"], "out": acts["fch_gelu"], "count": acts["fch"].size}
    backward = {**forward, "dout": dacts["fch_gelu"], "dinp": dacts["fch"]}
    options = {"options": tuple(getattr(settings, name) for name in SETTINGS), "step": step, "count": params.size}
    update = {**dict.fromkeys(("m", "v"), np.zeros_like(params)), **before, **options, "grads": groups["grads"]["wpe"]}
    for function, tensor, values, kernel, output, arguments in (
        ("expf", "activations/att", acts["att"], "attention_forward", "att", {**acts, **heads}),
        ("expf", "activations/probs", acts["probs"], "softmax_forward", "probs", {**acts, **logits}),
        ("logf", "activations/losses", acts["losses"], "crossentropy_forward", "losses", {**acts, **logits}),
        ("tanhf", "activations/fch_gelu", acts["fch_gelu"], "gelu_forward", "out", forward),
        ("tanhf or coshf", "activation_grads/fch", dacts["fch"], "gelu_backward", "dinp", backward),
        ("powf", "params/wpe", params, "adamw_update", "params", update),
    ):
        own, platform = (
            _differences(values, Kernel(version, kernel), output, arguments) for version in (plain, "platform")
        )
        yield Compared(function, tensor, values.size, own, platform)


def uses_platform(library: object, compared: Sequence[Compared]) -> bool:
    """Return whether the functions are those of the platform's libm, where they aren't also the library's own.

    `InvalidArgumentError` is raised for a function that is neither, and for functions of both kinds.
    """
    other = [function for function in compared if function.not_local]
    strange = [function for function in compared if function.not_platform]
    if other and strange:
        neither = [function for function in other if function.not_platform]
        found = str(neither[0]) if neither else f"{other[0]} and {strange[0]}"
        raise InvalidArgumentError(
            f"{library}: found {found}, expected all functions correctly rounded or all of this machine's libm: was it "
            "built as docs/numerics.md says?"
        )
    return bool(other)


def _differences(values: NDArray[np.float32], kernel: Kernel, output: str, arguments: Mapping[str, Any]) -> int:
    """Return in how many elements a kernel's output is another; the arguments stay as they are."""
    outputs = {parameter.name: arguments[parameter.name].copy() for parameter in kernel.parameters if parameter.output}
    kernel({**arguments, **outputs})
    found = outputs[output]
    same = (found.view(np.uint32) == values.view(np.uint32)) | (np.isnan(found) & np.isnan(values))
    return int(np.count_nonzero(~same))
