"""The plain model in Python: memory for what ``native/plain/gpt2.c`` computes, and the shape of a tree's sum."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError, LibraryNotFoundError
from starpullm.files.model import ModelConfig, num_elements, num_parameters, parameter_shapes
from starpullm.golden.pointers import ActivationPointers, ParameterPointers
from starpullm.golden.records import activation_shapes
from starpullm.memory import available_memory
from starpullm.options import ARITHMETICS

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class _Model(ctypes.Structure):
    _fields_ = [
        *((letter, ctypes.c_size_t) for letter in ("B", "T", "C", "NH", "L", "V", "Vp")),
        ("params", ParameterPointers),
        ("grads", ParameterPointers),
        ("acts", ActivationPointers),
        ("dacts", ActivationPointers),
    ]


class Settings(NamedTuple):
    """Settings of AdamW."""

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


class State(NamedTuple):
    """What training goes on from: the three groups of tensors, and the number of updates."""

    params: Mapping[str, Floats]
    m: Mapping[str, Floats]
    v: Mapping[str, Floats]
    updates: int

    def copy(self) -> State:
        """Return the state with tensors of its own."""
        return State(_copy(self.params), _copy(self.m), _copy(self.v), self.updates)


def new_state(config: ModelConfig, params: Mapping[str, Floats]) -> State:
    """Return the state of a model before its first step."""
    shapes = parameter_shapes(config)
    return State(_copy(params), _zeros(shapes), _zeros(shapes), 0)


class PlainModel:
    """A sequential trainer of whole batches (B, T); ``groups`` has its tensors as ``Trainer`` names them."""

    def __init__(
        self,
        config: ModelConfig,
        state: State,
        batch_size: int,
        seq_len: int,
        settings: Settings,
        arithmetic: str = ARITHMETICS[0],
    ) -> None:
        self.config, self.batch_size, self.seq_len, self.settings = config, batch_size, seq_len, settings
        shapes = activation_shapes(config, batch_size, seq_len)
        needed = 8 * sum(map(num_elements, shapes.values())) + 16 * num_parameters(config)
        if 0 < (available := available_memory()) < needed:
            raise InvalidArgumentError(f"the plain model needs {needed} bytes of memory, {available} are available")
        params, m, v, self.updates = state.copy()
        grads = _zeros(parameter_shapes(config))
        acts, dacts = _zeros(shapes), _zeros(shapes)
        self.groups: dict[str, Mapping[str, Floats]] = {
            "params": params, "grads": grads, "m": m, "v": v, "activations": acts, "activation_grads": dacts
        }  # fmt: skip
        sizes = (config.channels, config.num_heads, config.num_layers, config.vocab_size, config.padded_vocab_size)
        pointers = (ParameterPointers(*_addresses(group)) for group in (params, grads))
        self._model = _Model(
            batch_size,
            seq_len,
            *sizes,
            *pointers,
            *(ActivationPointers(*_addresses(arrays)) for arrays in (acts, dacts)),
        )
        self._library = library(arithmetic)

    @property
    def state(self) -> State:
        """A copy of what training goes on from."""
        return State(self.groups["params"], self.groups["m"], self.groups["v"], self.updates).copy()

    def tensor(self, group: str, name: str, layer: int | None = None) -> Floats:
        """Return a tensor, or one of its layers."""
        values = self.groups[group][name]
        return values if layer is None else values[layer]

    def forward(self, inputs: Ids) -> None:
        """Compute the activations but the losses."""
        self._library.plain_forward(ctypes.byref(self._model), _pointer(inputs))

    def evaluate(self, inputs: Ids, targets: Ids) -> np.float32:
        """Compute all activations, and return the mean loss."""
        self.forward(inputs)
        return np.float32(self._library.plain_loss(ctypes.byref(self._model), _pointer(targets)))

    def backward(self, inputs: Ids, targets: Ids, parts: int = 1) -> None:
        """Compute all gradients: in the order of the batch or, of several equal parts of it, added in a tree."""
        for values in self.groups["activation_grads"].values():
            values.fill(0)
        for name, values in self._tree(inputs, targets, 0, parts, self.batch_size // parts).items():
            self.groups["grads"][name][...] = values

    def update(self, learning_rate: float | None = None) -> None:
        """Do AdamW's update with the gradients."""
        self.updates += 1
        rate, betas, *others = self.settings
        options = [rate if learning_rate is None else learning_rate, *betas, *others]
        for name in self.groups["params"]:
            params, m, v, grads = (self.groups[group][name] for group in ("params", "m", "v", "grads"))
            tensors = (_pointer(values) for values in (params, m, v, grads))
            self._library.plain_update(
                *tensors, ctypes.c_size_t(params.size), *map(ctypes.c_float, options), ctypes.c_int64(self.updates)
            )

    def step(self, inputs: Ids, targets: Ids) -> np.float32:
        """Do a step in the order of the batch, and return its mean loss."""
        loss = self.evaluate(inputs, targets)
        self.backward(inputs, targets)
        self.update()
        return loss

    def _tree(self, inputs: Ids, targets: Ids, first: int, count: int, size: int) -> Mapping[str, Floats]:
        """Return the gradients of ``count`` parts: those of the first p added to the others', p a power of two."""
        grads = self.groups["grads"]
        if count > 1:
            left = 1 << (count - 1).bit_length() - 1
            of_left = self._tree(inputs, targets, first, left, size)
            of_right = self._tree(inputs, targets, first + left, count - left, size)
            return {name: of_left[name] + of_right[name] for name in grads}
        for values in grads.values():
            values.fill(0)
        sequences = (ctypes.c_size_t(first * size), ctypes.c_size_t((first + 1) * size))
        self._library.plain_backward(ctypes.byref(self._model), _pointer(inputs), _pointer(targets), *sequences)
        return {name: values.copy() for name, values in grads.items()}


@cache
def library(arithmetic: str = ARITHMETICS[0]) -> ctypes.CDLL:
    """Return the plain model's library for an arithmetic, which is installed with the package."""
    name = "plain" if arithmetic == ARITHMETICS[0] else f"plain_{arithmetic}"
    path = Path(__file__).parents[1] / "lib" / f"libstarpullm_{name}.so"
    if not path.is_file():
        raise LibraryNotFoundError(f"{path}: not found, expected the plain model's library there")
    return declared(ctypes.CDLL(str(path)))


def declared(opened: ctypes.CDLL) -> ctypes.CDLL:
    """Return the library with the results of its functions declared."""
    opened.plain_loss.restype = ctypes.c_float
    for function in (opened.plain_forward, opened.plain_backward, opened.plain_update):
        function.restype = None
    return opened


def _zeros(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _copy(tensors: Mapping[str, Floats]) -> dict[str, Floats]:
    return {name: values.copy() for name, values in tensors.items()}


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def _addresses(tensors: Mapping[str, Floats]) -> list[int]:
    return [values.ctypes.data for values in tensors.values()]
