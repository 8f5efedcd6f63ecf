"""llm.c's CPU trainer in a shared object: the layout of its model as ctypes structs, which is checked before use.

The layout is that of ``GPT2`` in ``train_gpt2.c`` since July 2024. llm.c ends its process on errors, so this runs in a
child process.

Size letters: B batch, T sequence length, L layers, V vocabulary.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import parameter_shapes
from starpullm.golden.pointers import ActivationPointers, ParameterPointers
from starpullm.golden.records import GoldenRecord, activation_shapes
from starpullm.processes.progress import report_phase

_BUILD = "gpt2_build_from_checkpoint"
_FUNCTIONS = (_BUILD, "gpt2_forward", "gpt2_zero_grad", "gpt2_backward", "gpt2_update")

_NO_LOSS = -1.0  # mean_loss before the first forward pass

# Memory after the struct and its contents, which a library with a longer struct would change.
_GUARD_BYTES = 4096
_GUARD = 0xA5

_CONFIG = ("max_seq_len", "vocab_size", "padded_vocab_size", "num_layers", "num_heads", "channels")


class _Config(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in _CONFIG]


class _Model(ctypes.Structure):
    _fields_ = [
        ("config", _Config),
        ("params", ParameterPointers),
        ("param_sizes", ctypes.c_size_t * len(ParameterPointers._fields_)),
        ("params_memory", ctypes.c_void_p),
        ("num_parameters", ctypes.c_size_t),
        ("grads", ParameterPointers),
        ("grads_memory", ctypes.c_void_p),
        ("m_memory", ctypes.c_void_p),
        ("v_memory", ctypes.c_void_p),
        ("acts", ActivationPointers),
        ("act_sizes", ctypes.c_size_t * len(ActivationPointers._fields_)),
        ("acts_memory", ctypes.c_void_p),
        ("num_activations", ctypes.c_size_t),
        ("grads_acts", ActivationPointers),
        ("grads_acts_memory", ctypes.c_void_p),
        ("batch_size", ctypes.c_int),
        ("seq_len", ctypes.c_int),
        ("inputs", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
        ("mean_loss", ctypes.c_float),
    ]


class LlmcModel:
    """A model in llm.c's memory, trained by llm.c's functions.

    `InvalidArgumentError` is raised if the library can't be opened, lacks a function, or lays its model out otherwise.
    """

    def __init__(self, library: Path, checkpoint: Path) -> None:
        self._where = library
        report_phase("opening llm.c")
        self._library = _open(library)
        expected = read_checkpoint(checkpoint, mmap=True)
        self._config = expected.config
        self._memory = (ctypes.c_ubyte * (ctypes.sizeof(_Model) + _GUARD_BYTES))()
        ctypes.memset(self._memory, _GUARD, ctypes.sizeof(self._memory))
        self._model = _Model.from_buffer(self._memory)
        report_phase("llm.c builds the model")
        self._call(_BUILD, str(checkpoint).encode())
        report_phase("checking the layout of llm.c's model")
        self._shapes = parameter_shapes(self._config)
        self._check_built()
        for name, values in self._tensors("params", self._model.params_memory, self._shapes):
            same = np.array_equal(values.view(np.uint32), expected.parameters[name].view(np.uint32))
            self._expect(f"params.{name}", "the checkpoint's values" if same else "others", "the checkpoint's values")

    def forward_backward(self, inputs: NDArray[np.int32], targets: NDArray[np.int32]) -> np.float32:
        """Compute activations and gradients of a batch (B, T), and return the mean loss."""
        B, T = inputs.shape
        sizes = (ctypes.c_size_t(B), ctypes.c_size_t(T))
        report_phase("llm.c's forward")
        ids = [np.ascontiguousarray(array, np.int32) for array in (inputs, targets)]
        self._call("gpt2_forward", *(array.ctypes.data_as(ctypes.c_void_p) for array in ids), *sizes)
        report_phase("checking the layout of llm.c's activations")
        self._check_forward(B, T)
        report_phase("llm.c's backward")
        self._call("gpt2_zero_grad")
        self._call("gpt2_backward")
        for group, memory, pointers, shapes in (
            ("grads", self._model.grads_memory, self._model.grads, self._shapes),
            ("grads_acts", self._model.grads_acts_memory, self._model.grads_acts, self._activation_shapes),
        ):
            self._check_pointers(group, memory, pointers, shapes)
        return np.float32(self._model.mean_loss)

    def update(self, settings: GoldenRecord, step: int) -> None:
        """Update the parameters; ``step`` counts from 1."""
        report_phase("llm.c's update", step)
        options = (settings.learning_rate, settings.beta1, settings.beta2, settings.eps, settings.weight_decay)
        self._call("gpt2_update", *map(ctypes.c_float, options), ctypes.c_int(step))

    def tensors(self, group: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield a group's tensors by name, with the layer dimension first, as views of llm.c's memory.

        They are valid until the next call. The elements of ``preatt`` above the diagonal, which llm.c never writes, are
        replaced by +0.
        """
        model = self._model
        memory, shapes = {
            "params": (model.params_memory, self._shapes),
            "grads": (model.grads_memory, self._shapes),
            "m": (model.m_memory, self._shapes),
            "v": (model.v_memory, self._shapes),
            "activations": (model.acts_memory, self._activation_shapes),
            "activation_grads": (model.grads_acts_memory, self._activation_shapes),
        }[group]
        for name, values in self._tensors(group, memory, shapes):
            yield name, np.tril(values) if (group, name) == ("activations", "preatt") else values

    def _call(self, function: str, *arguments: object) -> None:
        self._library[function](self._memory, *arguments)
        self._expect(
            "memory behind the struct",
            "untouched" if set(self._memory[ctypes.sizeof(_Model) :]) == {_GUARD} else "written to",
            "untouched",
        )

    def _check_built(self) -> None:
        for name in _CONFIG:
            self._expect(f"config.{name}", getattr(self._model.config, name), getattr(self._config, name))
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        self._check_table("param_sizes", list(self._model.param_sizes), sizes)
        self._expect("num_parameters", self._model.num_parameters, sum(sizes))
        self._check_pointers("params", self._model.params_memory, self._model.params, self._shapes)
        for name in ("grads_memory", "m_memory", "v_memory", "acts_memory", "grads_acts_memory", "inputs", "targets"):
            self._expect(name, getattr(self._model, name), None)
        for name in ("batch_size", "seq_len"):
            self._expect(name, getattr(self._model, name), 0)
        self._expect("mean_loss", self._model.mean_loss, _NO_LOSS)

    def _check_forward(self, B: int, T: int) -> None:
        self._expect("batch_size", self._model.batch_size, B)
        self._expect("seq_len", self._model.seq_len, T)
        self._activation_shapes = activation_shapes(self._config, B, T)
        sizes = [math.prod(shape) for shape in self._activation_shapes.values()]
        self._check_table("act_sizes", list(self._model.act_sizes), sizes)
        self._expect("num_activations", self._model.num_activations, sum(sizes))
        self._check_pointers("acts", self._model.acts_memory, self._model.acts, self._activation_shapes)
        losses = dict(self.tensors("activations"))["losses"]
        # The mean is between the least and the largest loss; its rounding is allowed for.
        low, high = float(losses.min()) * (1 - 1e-3), float(losses.max()) * (1 + 1e-3)
        if not low <= self._model.mean_loss <= high:
            raise self._refusal("mean_loss", f"{self._model.mean_loss:g}", f"{low:g} to {high:g}, as the losses are")

    def _check_table(self, name: str, found: list[int], expected: list[int]) -> None:
        for index, sizes in enumerate(zip(found, expected, strict=True)):
            self._expect(f"{name}[{index}]", *sizes)

    def _check_pointers(
        self, name: str, memory: int | None, pointers: ctypes.Structure, shapes: dict[str, tuple[int, ...]]
    ) -> None:
        """Check that the tensors are adjacent in their memory."""
        if not memory or memory % ctypes.alignment(ctypes.c_float):
            raise self._refusal(f"{name}_memory", str(memory), "the address of floats")
        position = memory
        for tensor, shape in shapes.items():
            self._expect(f"{name}.{tensor}", getattr(pointers, tensor), position)
            position += math.prod(shape) * ctypes.sizeof(ctypes.c_float)

    def _tensors(
        self, group: str, memory: int | None, shapes: dict[str, tuple[int, ...]]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        if not memory:
            raise self._refusal(f"{group}'s memory", "none", "an address")
        for name, shape in shapes.items():
            count = math.prod(shape)
            yield name, np.ctypeslib.as_array((ctypes.c_float * count).from_address(memory)).reshape(shape)
            memory += count * ctypes.sizeof(ctypes.c_float)

    def _expect(self, name: str, found: object, expected: object) -> None:
        if found != expected:
            raise self._refusal(name, str(found), str(expected))

    def _refusal(self, name: str, found: str, expected: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._where}: its model isn't laid out like llm.c's: {name}: found {found}, expected {expected}"
        )


def _open(path: Path) -> ctypes.CDLL:
    if not path.is_file():
        raise InvalidArgumentError(f"{path}: no such file, expected a shared object with llm.c's functions")
    try:
        library = ctypes.CDLL(str(path.absolute()))
    except OSError as error:
        raise InvalidArgumentError(f"{path}: could not be opened: {error}") from error
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise InvalidArgumentError(f"{path}: found no {', '.join(missing)}, expected llm.c's functions")
    for name in _FUNCTIONS:
        library[name].restype = None
    return library
