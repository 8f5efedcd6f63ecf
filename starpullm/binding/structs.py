"""The C ABI's structs, records and handles; ``starpullm.h`` has their comments."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, ClassVar

import numpy as np

from starpullm.errors import StateError


class _Sized(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **values: Any) -> None:
        super().__init__(size=ctypes.sizeof(self), **values)


class BuildInfo(_Sized):
    """``struct starpullm_build_info``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("version", c_char_p),
        ("compiler", c_char_p),
        ("compiler_flags", c_char_p),
        ("build_type", c_char_p),
        ("starpu_version", c_char_p),
        ("starpu_prefix", c_char_p),
        ("mpi", c_int32),
    ]


class MachineInfo(_Sized):
    """``struct starpullm_machine_info``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("cores", c_int32),
        ("processing_units", c_int32),
        ("numa_nodes", c_int32),
        ("synthetic", c_int32),
        ("processor", c_char_p),
        ("simd_level", c_char_p),
        ("starpu_version", c_char_p),
        ("starpu_max_workers", c_int32),
        ("starpu_max_contexts", c_int32),
        ("starpu_parallel_workers", c_int32),
    ]


class ModelConfigStruct(ctypes.Structure):
    """``struct starpullm_model_config``."""

    _fields_: ClassVar = [
        ("max_seq_len", c_int32),
        ("vocab_size", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("channels", c_int32),
        ("padded_vocab_size", c_int32),
    ]


class RuntimeOptions(_Sized):
    """``struct starpullm_runtime_options``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("workers", c_int32),
        ("threads_per_worker", c_int32),
        ("scheduler", c_char_p),
        ("communicator", POINTER(c_int32)),
        ("blas_library", c_char_p),
    ]


class SessionOptions(_Sized):
    """``struct starpullm_session_options``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("checkpoint", c_char_p),
        ("resume", c_char_p),
        ("batch_size", c_int64),
        ("seq_len", c_int64),
        ("sub_batches", c_int64),
        ("reduction", c_int32),
        ("learning_rate", c_float),
        ("beta1", c_float),
        ("beta2", c_float),
        ("eps", c_float),
        ("weight_decay", c_float),
        ("keep_activations", c_int32),
        ("steps_in_flight", c_int32),
        ("trace", c_int32),
        ("instruments", c_int32),
        ("max_delay_us", c_int32),
        ("delay_seed", c_uint64),
    ]


class TrainingStateInfo(_Sized):
    """``struct starpullm_training_state_info``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("path", c_char * 1024),
        ("config", ModelConfigStruct),
        ("step", c_int64),
        ("batches", c_int64),
        ("batch_size", c_int64),
        ("seq_len", c_int64),
        ("seed", c_int64),
        ("data_id", c_uint64),
        ("ranks", c_int32),
        ("passed_over", c_char * 512),
        ("learning_rate", c_float),
        ("beta1", c_float),
        ("beta2", c_float),
        ("eps", c_float),
        ("weight_decay", c_float),
        ("blas", c_int32),
    ]


class SaveOptions(_Sized):
    """``struct starpullm_save_options``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("directory", c_char_p),
        ("run", c_uint64),
        ("batches", c_int64),
        ("seed", c_int64),
        ("data_id", c_uint64),
        ("keep", c_int32),
    ]


class TensorInfo(_Sized):
    """``struct starpullm_tensor_info``."""

    _fields_: ClassVar = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("instances", c_int32),
        ("layered", c_int32),
        ("num_dims", c_int32),
        ("dims", c_int64 * 4),
    ]


class HandleInfoStruct(_Sized):
    """``struct starpullm_handle_info``."""

    _fields_: ClassVar = [("size", c_size_t), ("name", c_char * 64), ("bytes", c_int64)]


TRACE_TASK = np.dtype(
    [
        ("id", "i8"),
        ("step", "i8"),
        ("operation", "i4"),
        ("sub_batch", "i4"),
        ("layer", "i4"),
        ("rank", "i4"),
        ("worker", "i4"),
        ("num_accesses", "i4"),
        ("first_access", "i8"),
        ("submit_ns", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
    ]
)
THREAD_INFO = np.dtype([("worker", "i4"), ("thread", "i4"), ("first_unit", "i4"), ("num_units", "i4")])
TRACE_ACCESS = np.dtype([("handle", "i4"), ("mode", "i4")])
FINDING = np.dtype([("task", "i8"), ("handle", "i4"), ("kind", "i4"), ("offset", "i8"), ("count", "i8")])


class Handle:
    """A pointer to an object of C's; it can't be passed to C after closing, or where another kind is expected."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._pointer = c_void_p()

    @property
    def is_open(self) -> bool:
        """Whether the object exists."""
        return bool(self._pointer)

    def forget(self) -> None:
        """Mark it as closed."""
        self._pointer = c_void_p()

    def __bool__(self) -> bool:
        return self.is_open

    @classmethod
    def to_c(cls, handle: object) -> c_void_p:
        """Return the pointer for C."""
        if not isinstance(handle, cls):
            raise TypeError(f"found {type(handle).__name__}, expected {cls.__name__}")
        if not handle:
            raise StateError(f"the {cls.kind} is closed, expected one that is open")
        return handle._pointer

    @property
    def address(self) -> Any:
        """The address to which C writes the pointer."""
        return ctypes.byref(self._pointer)


class RuntimeHandle(Handle):
    """``starpullm_runtime *``."""

    kind = "runtime"


class SessionHandle(Handle):
    """``starpullm_session *``."""

    kind = "trainer"


class LossHandle(Handle):
    """``starpullm_loss *``."""

    kind = "loss"
