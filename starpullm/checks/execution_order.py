"""The order in which a step completes its tensors."""

from __future__ import annotations

from collections.abc import Iterator

# Activations of a block in the order in which the forward pass writes them.
_BLOCK_FORWARD = (
    "ln1 ln1_mean ln1_rstd qkv preatt att atty attproj residual2 ln2 ln2_mean ln2_rstd fch fch_gelu fcproj residual3"
).split()

INSIDE_BLOCK = tuple(name for name in _BLOCK_FORWARD if name != "residual3")
"""Activations that no other block uses, nor their gradients."""

SHARED_ACTIVATIONS = {
    "none": {"preatt", "attproj", "fcproj"},
    "attention": {"preatt", "att", "atty", "attproj", "fcproj"},
    "block": set(INSIDE_BLOCK),
}
"""The activations whose layers share a buffer without keep_activations, by what is computed again."""

WITH_WEIGHTS = {"ln1", "qkv", "attproj", "ln2", "fch", "fcproj"}
"""Outputs of matmuls and layernorms, of whose gradients blocks have buffers of their own if ``gradient_buffers`` is
``block``."""

# Activation gradients of a block in the order in which the backward pass completes them. After those of an operation
# come the gradients of its parameters, marked with =.
_BLOCK_BACKWARD = (
    "fcproj fch_gelu =fcprojw =fcprojb fch ln2 =fcw =fcb residual2 =ln2w =ln2b attproj atty =attprojw =attprojb "
    "att preatt qkv ln1 =qkvw =qkvb =ln1w =ln1b"
).split()

# Their gradients are always 0.
_BLOCK_CONSTANT = "ln1_mean ln1_rstd ln2_mean ln2_rstd".split()
CONSTANT = {f"activation_grads/{name}" for name in (*_BLOCK_CONSTANT, "lnf_mean", "lnf_rstd", "probs")}

_BLOCK_PARAMETERS = "ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb".split()


def execution_order(num_layers: int) -> Iterator[tuple[str, str, int | None]]:
    """Yield group, tensor and layer (or None) of all tensors of a step, in the order in which they are completed.

    The order is: forward pass, backward pass from the last block on, update. So the first tensor that differs is the
    nearest to the cause.
    """
    activations, grads = "activations", "activation_grads"
    yield activations, "encoded", None
    for layer in range(num_layers):
        for name in _BLOCK_FORWARD:
            yield activations, name, layer
    for name in "lnf lnf_mean lnf_rstd logits probs losses".split():
        yield activations, name, None

    for name in "losses probs logits lnf lnf_mean lnf_rstd".split():
        yield grads, name, None
    yield "grads", "lnfw", None
    yield "grads", "lnfb", None
    for layer in reversed(range(num_layers)):
        # residual3's gradient is complete once the block above, or lnf, has added to it.
        yield grads, "residual3", layer
        for name in _BLOCK_BACKWARD:
            yield ("grads", name[1:], layer) if name.startswith("=") else (grads, name, layer)
        for name in _BLOCK_CONSTANT:
            yield grads, name, layer
    yield grads, "encoded", None
    yield "grads", "wte", None
    yield "grads", "wpe", None

    for group in ("m", "v", "params"):
        yield group, "wte", None
        yield group, "wpe", None
        for layer in range(num_layers):
            for name in _BLOCK_PARAMETERS:
                yield group, name, layer
        yield group, "lnfw", None
        yield group, "lnfb", None
