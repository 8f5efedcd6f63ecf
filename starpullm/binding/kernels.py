"""The kernels of a SIMD level as Python functions, with the parameters that the library declares for them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from starpullm.binding import declarations, prototypes, structs
from starpullm.errors import InvalidArgumentError
from starpullm.options import ARITHMETICS

Argument = Any
"""An array or None for a pointer, numbers for a struct's members, a number for anything else."""


class _Team(ctypes.Structure):
    _fields_ = [("index", ctypes.c_int), ("count", ctypes.c_int), ("board", ctypes.c_void_p)]


class _AdamwOptions(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in ("learning_rate", "beta1", "beta2", "eps", "weight_decay")]


_TYPES: dict[str, Any] = structs.TYPES | {"sum_start": ctypes.c_int, "team": _Team, "adamw_options": _AdamwOptions}


class Kernel:
    """A kernel of a SIMD level; see ``starpullm_kernel`` in starpullm.h.

    ``parameters`` are those of its declaration without the last one, the team.
    """

    def __init__(self, level: str, name: str) -> None:
        (info,) = prototypes.results("kernel", prototypes.c_string("level", level), prototypes.c_string("kernel", name))
        self.name, self.level = name, level
        declared = declarations.kernel_parameters(prototypes.text(info.parameters))
        assert declared[-1].type == "team", declared
        self.parameters = declared[:-1]
        self._function = ctypes.CFUNCTYPE(None, *map(_c_type, declared))(info.function)

    def __call__(self, arguments: Mapping[str, Argument], *, thread: int = 0, threads: int = 1) -> None:
        """Compute the part of the outputs that belongs to one thread of a team.

        The arguments are given by the parameters' names. Arrays are contiguous, and as large as the sizes among the
        arguments require: nothing can check this here.
        """
        values = [_to_c(parameter, arguments) for parameter in self.parameters]
        self._function(*values, _Team(thread, threads))


def level_name(level: str, arithmetic: str) -> str:
    """Return the name of a level's kernels of an arithmetic."""
    return level if arithmetic == ARITHMETICS[0] else f"{level}_{arithmetic}"


def kernel_names() -> tuple[str, ...]:
    """Return the names of all kernels, in the order in which a step runs them."""
    return tuple(prototypes.names("kernel_name"))


def fit_caches(l2_cache: int) -> None:
    """Let the blocks of matmuls be those for a second-level cache of so many bytes; changes no bit of a result."""
    prototypes.call("fit_caches", l2_cache)


def present_cache() -> int:
    """Return the bytes of the second-level cache that the blocks of matmuls are for."""
    (machine,) = prototypes.results("machine_info")
    return int(machine.l2_cache)


def _is_array(parameter: declarations.Declaration) -> bool:
    return parameter.pointers > 0 and parameter.type != "adamw_options"


def _c_type(parameter: declarations.Declaration) -> Any:
    if _is_array(parameter):
        return ctypes.c_void_p
    kind = _TYPES[parameter.type]
    return ctypes.POINTER(kind) if parameter.pointers else kind


def _to_c(parameter: declarations.Declaration, arguments: Mapping[str, Argument]) -> Any:
    if parameter.name not in arguments:
        raise InvalidArgumentError(f"{parameter.name}: found no such argument, expected one of type {parameter.type}")
    value = arguments[parameter.name]
    if parameter.type == "adamw_options":
        return ctypes.byref(_AdamwOptions(*value))
    if not _is_array(parameter) or value is None:
        return value
    try:
        return prototypes.address_of_array(value, parameter, np.dtype(_TYPES[parameter.type]))
    except TypeError as error:
        raise InvalidArgumentError(str(error)) from error
