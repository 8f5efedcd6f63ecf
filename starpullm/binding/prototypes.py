"""Calling the functions of starpullm.h, with the error check that every status goes through."""

from __future__ import annotations

import ctypes
import math
import operator
import os
from collections.abc import Callable, Iterator
from ctypes import c_char_p, c_float, c_int, c_int32, c_void_p
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import declarations, structs
from starpullm.binding.library import open_library
from starpullm.binding.structs import TRACE_ACCESS, TRACE_TASK, TYPES, Handle, c_type
from starpullm.errors import (
    FileError,
    FormatError,
    InvalidArgumentError,
    LibraryNotFoundError,
    OutOfMemoryError,
    RuntimeFailureError,
    StarpullmError,
    StateError,
    TokenRangeError,
)

_EXCEPTIONS: dict[int, type[StarpullmError]] = {
    1: InvalidArgumentError,
    2: TokenRangeError,
    3: FormatError,
    4: FileError,
    5: StateError,
    6: OutOfMemoryError,
    7: RuntimeFailureError,
}


class _Status(c_int):
    """The result type of functions whose failure raises."""


_RESULTS: dict[str, Any] = {"status": _Status, "void": None, "char": c_char_p}
# Converts an argument before ctypes gets it; None: ctypes converts. Handles and arrays don't use from_param, because
# ctypes turns every exception in there, also an interrupt, into an ArgumentError.
_Converter = Callable[[object], Any] | None


def _converter(parameter: declarations.Declaration) -> _Converter:
    if parameter.pointers != 1 or parameter.type == "char":
        return None
    if parameter.type not in TYPES:
        return partial(Handle.to_c, parameter.type)
    target = TYPES[parameter.type]
    # Made here, because NumPy turns an interrupt in there into a TypeError. Structs with a size aren't in arrays.
    dtype = None if hasattr(target, "size") else np.dtype(target)

    def to_c(value: object) -> int:
        """Return the address of one value of ctypes, or of an array."""
        if isinstance(value, target):
            return ctypes.addressof(value)
        return address_of_array(value, parameter, dtype)

    return to_c


def address_of_array(value: object, parameter: declarations.Declaration, dtype: np.dtype[Any] | None) -> int:
    """Return the address of a contiguous array, which is writable if C writes to it; else raise a `TypeError`."""
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != dtype
        or not value.flags.c_contiguous
        or (parameter.output and not value.flags.writeable)
    ):
        raise TypeError(f"{parameter.name}: expected a contiguous array of {parameter.type}")
    return value.ctypes.data


def _check(result: Any, function: Any, arguments: Any) -> Any:
    if result.value:
        raise _exception(result.value)
    return result


@cache
def _library() -> ctypes.CDLL:
    library = open_library()
    found = _bound(library, "abi_version")[0]()
    if found != declarations.abi_version():
        raise LibraryNotFoundError(f"{library._name}: ABI version is {found}, expected {declarations.abi_version()}")
    return library


@cache
def _function(name: str) -> tuple[Callable[..., Any], tuple[_Converter, ...]]:
    return _bound(_library(), name)


def _bound(library: ctypes.CDLL, name: str) -> tuple[Callable[..., Any], tuple[_Converter, ...]]:
    """Return a function of the library as the header declares it, and what converts its arguments."""
    result, parameters = declarations.functions()[name]
    try:
        function = library[f"starpullm_{name}"]
    except AttributeError as error:
        raise LibraryNotFoundError(
            f"{library._name}: has no function starpullm_{name}, expected ABI version {declarations.abi_version()}"
        ) from error
    converters = tuple(map(_converter, parameters))
    function.restype = _RESULTS[result.type] if result.type in _RESULTS else TYPES[result.type]
    function.argtypes = [
        c_void_p if converter else c_type(parameter)
        for parameter, converter in zip(parameters, converters, strict=True)
    ]
    if result.type == "status":
        function.errcheck = _check
    return function, converters


def call(name: str, *arguments: Any) -> Any:
    """Call ``starpullm_<name>``; a status other than OK raises the exception of its kind, with C's error sentence."""
    function, converters = _function(name)
    converted = [
        convert(argument) if convert else argument for argument, convert in zip(arguments, converters, strict=True)
    ]
    return function(*converted)


def results(name: str, *arguments: Any) -> list[Any]:
    """Call a function whose pointers that aren't constant are to one value each, and return those values."""
    parameters = declarations.functions()[name][1]
    given = iter(arguments)
    is_result = [parameter.output and parameter.type in TYPES for parameter in parameters]
    values = [
        TYPES[parameter.type]() if made else next(given) for parameter, made in zip(parameters, is_result, strict=True)
    ]
    call(name, *values)
    return [getattr(value, "value", value) for value, made in zip(values, is_result, strict=True) if made]


def _exception(code: int) -> StarpullmError:
    sentence = call("last_error").decode(errors="replace")
    kind = _EXCEPTIONS[code]
    if kind is FileError:
        return FileError(sentence, call("last_error_number") or None)
    return kind(sentence)


def integer(name: str, value: int, bits: int) -> int:
    """Return an integer for C; ctypes would silently cut a larger one to its lower bits."""
    number = operator.index(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise InvalidArgumentError(f"{name}: found {number}, expected an integer of {bits} bits")
    return number


def unsigned(name: str, value: int, bits: int) -> int:
    """Return the same for a type without a sign."""
    number = operator.index(value)
    if not 0 <= number < 2**bits:
        raise InvalidArgumentError(f"{name}: found {number}, expected an integer from 0 to 2^{bits} - 1")
    return number


def binary32(value: float) -> float:
    """Return a number rounded to the nearest binary32; ctypes would round as the floating-point environment says."""
    last_bit = max(math.frexp(value)[1] - 24, -149)
    return math.ldexp(round(math.ldexp(value, -last_bit)), last_bit) if math.isfinite(value) else value


def c_string(name: str, value: str | os.PathLike[str]) -> bytes:
    """Return a text or path for C, where it would end at its first NUL."""
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise InvalidArgumentError(f"{name}: found {os.fspath(value)!r}, expected no NUL in it")
    return encoded


def communicator(fortran_handle: int | None) -> Any:
    """Return an MPI communicator's Fortran handle as a pointer for C; None: no communicator."""
    return None if fortran_handle is None else ctypes.pointer(c_int32(fortran_handle))


def text(value: bytes | None) -> str:
    """Decode a text of C's; NULL is an empty text."""
    return (value or b"").decode(errors="replace")


def names(function: str) -> Iterator[str]:
    """Yield the names that ``starpullm_<function>(index)`` returns for 0, 1, ... up to NULL."""
    index = 0
    while (name := call(function, index)) is not None:
        yield text(name)
        index += 1


def starpu_of_build() -> tuple[str, str]:
    """Return version and folder of the StarPU that the library and the probe were compiled for."""
    build = structs.new("build_info")
    call("build_info", build)
    return text(build.starpu_version), text(build.starpu_prefix)


def trace(name: str, *arguments: Any) -> tuple[NDArray[np.void], NDArray[np.void], list[tuple[str, int, int]]]:
    """Call a function that makes a trace; return its tasks, accesses, and name, bytes and owner of each handle."""
    made = ctypes.POINTER(TYPES["trace"])()
    try:
        call(name, *arguments, ctypes.byref(made))
        found = made.contents
        tasks = _copied(found.tasks, np.empty(found.num_tasks, TRACE_TASK))
        accesses = _copied(found.accesses, np.empty(found.num_accesses, TRACE_ACCESS))
        handles = [(text(handle.name), handle.bytes, handle.owner) for handle in found.handles[: found.num_handles]]
    finally:
        call("trace_destroy", ctypes.byref(made))
    return tasks, accesses, handles


def _copied(values: Any, array: NDArray[np.void]) -> NDArray[np.void]:
    ctypes.memmove(array.ctypes.data, values, array.nbytes)
    return array


def peak_gflops(*, fused: bool, seconds: float) -> float:
    """Return the calling thread's peak in GFLOP/s with the SIMD level in use; 0 if fused and it has no such loop."""
    (gflops,) = results("peak_gflops", fused, seconds)
    return float(gflops)


def loss_value(loss: Handle) -> np.float32:
    """Wait for a loss and return it."""
    value = c_float()
    call("loss_wait", loss, value)
    # A conversion to double and back could change the bits of a NaN.
    bits: np.float32 = np.frombuffer(bytes(value), np.float32)[0]
    return bits


def release(session: Handle) -> NDArray[np.int64]:
    """Release held tasks; return the dependencies between them in StarPU's graph, shape (E, 2)."""
    (count,) = results("session_release", session)
    edges = np.empty((count, 2), np.int64)
    call("session_runtime_edges", session, edges, count)
    return edges
