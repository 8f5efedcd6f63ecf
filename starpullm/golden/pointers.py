"""Pointers to a model's tensors by name, as llm.c's structs and those of the plain model have them."""

from __future__ import annotations

import ctypes

from starpullm.files.model import ModelConfig, parameter_shapes
from starpullm.golden.records import activation_shapes

_ANY = ModelConfig(max_seq_len=1, vocab_size=1, num_layers=1, num_heads=1, channels=1, padded_vocab_size=1)


class ParameterPointers(ctypes.Structure):
    """In the checkpoint's order."""

    _fields_ = [(name, ctypes.c_void_p) for name in parameter_shapes(_ANY)]


class ActivationPointers(ctypes.Structure):
    """In the order of execution."""

    _fields_ = [(name, ctypes.c_void_p) for name in activation_shapes(_ANY, 1, 1)]
