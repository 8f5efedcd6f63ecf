"""The C ABI's functions: one prototype line each, and the error check that every status goes through."""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Callable, Iterator
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.binding.library import open_library
from starpullm.binding.structs import (
    FINDING,
    THREAD_INFO,
    TRACE_ACCESS,
    TRACE_TASK,
    BuildInfo,
    Handle,
    HandleInfoStruct,
    LossHandle,
    MachineInfo,
    ModelConfigStruct,
    RuntimeHandle,
    RuntimeOptions,
    SaveOptions,
    SessionHandle,
    SessionOptions,
    TensorInfo,
    TrainingStateInfo,
)
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

ABI_VERSION = 2
_EXCEPTIONS: dict[int, type[StarpullmError]] = {
    1: InvalidArgumentError,
    2: TokenRangeError,
    3: FormatError,
    4: FileError,
    5: StateError,
    6: OutOfMemoryError,
    7: RuntimeFailureError,
}


class _Array:
    """An argument that is a NumPy array: contiguous, of this type, and writable if C writes to it."""

    def __init__(self, dtype: Any, *, writable: bool) -> None:
        self._dtype = np.dtype(dtype)
        self._writable = writable

    def to_c(self, array: object) -> int:
        """Return the address to pass on."""
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != self._dtype
            or not array.flags.c_contiguous
            or (self._writable and not array.flags.writeable)
        ):
            raise TypeError(f"expected a contiguous array of {self._dtype}")
        return array.ctypes.data


_OUT = c_void_p  # address of a pointer that C fills in
_FLOATS = _Array(np.float32, writable=False)
_WRITABLE_FLOATS = _Array(np.float32, writable=True)
_TOKENS = _Array(np.int32, writable=False)
_TASKS = _Array(TRACE_TASK, writable=True)
_ACCESSES = _Array(TRACE_ACCESS, writable=True)
_THREADS = _Array(THREAD_INFO, writable=True)
_EDGES = _Array(np.int64, writable=True)
_FINDINGS = _Array(FINDING, writable=True)


class _Status(c_int):
    """The result type of functions whose failure raises."""


# Name without its prefix, result type, argument types. A result of type _Status is checked.
_PROTOTYPES: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("last_error", c_char_p, ()),
    ("last_error_number", c_int, ()),
    ("abi_version", c_int, ()),
    ("build_info", _Status, (POINTER(BuildInfo),)),
    ("machine_info", _Status, (POINTER(MachineInfo),)),
    ("scheduler_name", c_char_p, (c_size_t,)),
    ("libm", _Status, (c_char_p, _WRITABLE_FLOATS, _FLOATS, c_size_t)),
    ("libm_powf", _Status, (_WRITABLE_FLOATS, _FLOATS, _FLOATS, c_size_t)),
    ("simd_level_name", c_char_p, (c_size_t,)),
    ("vector_libm_name", c_char_p, (c_size_t,)),
    ("vector_libm", _Status, (POINTER(c_int32), POINTER(c_uint64), c_char_p)),
    ("prove_libm", _Status, (POINTER(c_uint64), POINTER(c_uint32), c_char_p, c_char_p, c_uint64, c_uint64)),
    ("peak_gflops", _Status, (POINTER(c_double), c_int32, c_double)),
    ("float_environment", c_char_p, ()),
    ("runtime_create", _Status, (POINTER(RuntimeOptions), _OUT)),
    ("blas", c_char_p, ()),
    ("runtime_destroy", _Status, (RuntimeHandle,)),
    ("runtime_threads", _Status, (RuntimeHandle, _THREADS, c_size_t)),
    ("session_create", _Status, (RuntimeHandle, POINTER(SessionOptions), _OUT)),
    ("session_destroy", None, (SessionHandle,)),
    ("session_config", _Status, (SessionHandle, POINTER(ModelConfigStruct))),
    ("loss_wait", _Status, (LossHandle, POINTER(c_float))),
    ("loss_ready", c_int, (LossHandle,)),
    ("loss_destroy", None, (LossHandle,)),
    ("session_submit_step", _Status, (SessionHandle, _TOKENS, _TOKENS, _OUT)),
    ("session_submit_evaluation", _Status, (SessionHandle, _TOKENS, _TOKENS, _OUT)),
    ("session_submit_forward", _Status, (SessionHandle, _TOKENS)),
    ("session_wait", _Status, (SessionHandle,)),
    ("tensor_count", c_int32, (c_int32,)),
    ("session_tensor_info", _Status, (SessionHandle, c_int32, c_int32, POINTER(TensorInfo))),
    ("session_gather", _Status, (SessionHandle,)),
    (
        "session_read_tensor",
        _Status,
        (SessionHandle, c_int32, c_int32, c_int32, c_int64, c_int64, _WRITABLE_FLOATS),
    ),
    ("session_save_checkpoint", _Status, (SessionHandle, c_char_p)),
    ("training_state_info", _Status, (c_char_p, POINTER(TrainingStateInfo))),
    ("session_save_state", _Status, (SessionHandle, POINTER(SaveOptions))),
    ("session_wait_saved", _Status, (SessionHandle,)),
    ("operation_name", c_char_p, (c_int32,)),
    ("session_trace_size", _Status, (SessionHandle, POINTER(c_size_t), POINTER(c_size_t))),
    ("session_trace_read", _Status, (SessionHandle, _TASKS, c_size_t, _ACCESSES, c_size_t)),
    ("session_trace_clear", _Status, (SessionHandle,)),
    ("session_hold", _Status, (SessionHandle,)),
    ("session_release", _Status, (SessionHandle, POINTER(c_size_t))),
    ("session_runtime_edges", _Status, (SessionHandle, _EDGES, c_size_t)),
    ("session_findings_size", _Status, (SessionHandle, POINTER(c_size_t))),
    ("session_findings_read", _Status, (SessionHandle, _FINDINGS, c_size_t)),
    ("session_handle_count", c_int32, (SessionHandle,)),
    ("session_handle_info", _Status, (SessionHandle, c_int32, POINTER(HandleInfoStruct))),
)
# Converts an argument before ctypes gets it; None: ctypes converts. Handles and arrays don't use from_param, because
# ctypes turns every exception in there, also an interrupt, into an ArgumentError.
_Converter = Callable[[object], Any] | None


@cache
def _functions() -> dict[str, tuple[Callable[..., Any], tuple[_Converter, ...]]]:
    library = open_library()

    def check(result: Any, function: Any, arguments: Any) -> Any:
        if result.value:
            raise _exception(result.value)
        return result

    functions: dict[str, tuple[Callable[..., Any], tuple[_Converter, ...]]] = {}
    for name, result_type, argument_types in _PROTOTYPES:
        try:
            function = library[f"starpullm_{name}"]
        except AttributeError as error:
            raise LibraryNotFoundError(
                f"{library._name}: has no function starpullm_{name}, expected ABI version {ABI_VERSION}"
            ) from error
        converters = tuple(getattr(argument_type, "to_c", None) for argument_type in argument_types)
        function.restype = result_type
        function.argtypes = [
            c_void_p if converter else argument_type
            for argument_type, converter in zip(argument_types, converters, strict=True)
        ]
        if result_type is _Status:
            function.errcheck = check
        functions[name] = function, converters
    found = functions["abi_version"][0]()
    if found != ABI_VERSION:
        raise LibraryNotFoundError(f"{library._name}: ABI version is {found}, expected {ABI_VERSION}")
    return functions


def call(name: str, *arguments: Any) -> Any:
    """Call ``starpullm_<name>``; a status other than OK raises the exception of its kind, with C's error sentence."""
    function, converters = _functions()[name]
    converted = [
        convert(argument) if convert else argument for argument, convert in zip(arguments, converters, strict=True)
    ]
    return function(*converted)


def _exception(code: int) -> StarpullmError:
    sentence = call("last_error").decode(errors="replace")
    kind = _EXCEPTIONS[code]
    if kind is FileError:
        return FileError(sentence, call("last_error_number") or None)
    return kind(sentence)


def integer(name: str, value: int, bits: int) -> int:
    """Return an integer for C; ctypes would silently cut a larger one to its lower bits.

    Raises
    ------
    InvalidArgumentError
        If it doesn't fit.
    """
    number = operator.index(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise InvalidArgumentError(f"{name}: found {number}, expected an integer of {bits} bits")
    return number


def c_string(name: str, value: str | os.PathLike[str]) -> bytes:
    """Return a text or path for C, where it would end at its first NUL.

    Raises
    ------
    InvalidArgumentError
        If it has a NUL.
    """
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


def libm(function: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Apply a function of the libm that the kernels use, element by element; same shape."""
    values = np.ascontiguousarray(values, np.float32)
    result = np.empty_like(values)
    call("libm", function.encode(), result, values, values.size)
    return result


def libm_powf(base: NDArray[np.float32], exponent: NDArray[np.float32]) -> NDArray[np.float32]:
    """Apply the same libm's ``powf``, element by element; same shape."""
    base, exponent = np.ascontiguousarray(base, np.float32), np.ascontiguousarray(exponent, np.float32)
    result = np.empty_like(base)
    call("libm_powf", result, base, exponent, base.size)
    return result


def vector_libm(function: str) -> tuple[bool, int]:
    """Return whether kernels use the vector version of a libm function, and the fingerprint of libm's own."""
    used, fingerprint = c_int32(), c_uint64()
    call("vector_libm", used, fingerprint, c_string("function", function))
    return bool(used.value), fingerprint.value


def prove_libm(level: str, function: str, begin: int, end: int) -> tuple[int, int | None]:
    """Return how many results differ for inputs with bit patterns begin <= i < end, and the first such bit pattern."""
    differences, first = c_uint64(), c_uint32()
    call("prove_libm", differences, first, c_string("level", level), c_string("function", function), begin, end)
    return differences.value, first.value if differences.value else None


def peak_gflops(*, fused: bool, seconds: float) -> float:
    """Return the calling thread's peak in GFLOP/s with the SIMD level in use; 0 if fused and it has no such loop."""
    gflops = c_double()
    call("peak_gflops", gflops, fused, seconds)
    return gflops.value


def loss_value(loss: LossHandle) -> np.float32:
    """Wait for a loss and return it."""
    value = c_float()
    call("loss_wait", loss, value)
    # A conversion to double and back could change the bits of a NaN.
    bits: np.float32 = np.frombuffer(bytes(value), np.float32)[0]
    return bits


def trace_size(session: Handle) -> tuple[int, int]:
    """Return the numbers of recorded tasks and accesses."""
    tasks, accesses = c_size_t(), c_size_t()
    call("session_trace_size", session, tasks, accesses)
    return tasks.value, accesses.value


def release(session: Handle) -> NDArray[np.int64]:
    """Release held tasks; return the dependencies between them in StarPU's graph, shape (E, 2)."""
    count = c_size_t()
    call("session_release", session, count)
    edges = np.empty((count.value, 2), np.int64)
    call("session_runtime_edges", session, edges, count.value)
    return edges


def findings_size(session: Handle) -> int:
    """Return the number of the instruments' findings."""
    count = c_size_t()
    call("session_findings_size", session, count)
    return count.value
