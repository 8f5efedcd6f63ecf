"""The structs and records of starpullm.h, and handles of the library's objects."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_void_p
from typing import Any

import numpy as np

from starpullm.binding import declarations
from starpullm.errors import StateError

TYPES: dict[str, Any] = {
    name: getattr(ctypes, f"c_{name.removesuffix('_t')}")
    for name in ("char", "int", "int32_t", "int64_t", "uint32_t", "uint64_t", "float", "double")
} | {"size_t": ctypes.c_size_t}
"""Numbers and structs by their names in the header, without the prefix ``starpullm_``."""


class _Struct(ctypes.Structure):
    """Most structs begin with their own size."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if hasattr(self, "size"):
            self.size = ctypes.sizeof(self)


def c_type(declaration: declarations.Declaration) -> Any:
    """Return the type of a struct's member or of a parameter."""
    if declaration.type not in TYPES:
        return c_void_p  # a handle
    kind, pointers = TYPES[declaration.type], declaration.pointers
    if declaration.type == "char" and pointers:
        kind, pointers = c_char_p, pointers - 1
    for _ in range(pointers):
        kind = ctypes.POINTER(kind)
    return kind * declaration.elements if declaration.elements else kind


for _name, _members in declarations.structs().items():
    _fields = [(member.name, c_type(member)) for member in _members]
    TYPES[_name] = type(_name, (_Struct,), {"_fields_": _fields})


def new(name: str, **values: Any) -> Any:
    """Return ``struct starpullm_<name>`` with these members, its size, and zeros."""
    return TYPES[name](**values)


TRACE_TASK = np.dtype(TYPES["trace_task"])
TRACE_ACCESS = np.dtype(TYPES["trace_access"])
FINDING = np.dtype(TYPES["finding"])


class Handle:
    """A pointer to an object of C's; it can't be passed to C after closing, or where another kind is expected."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        """Its type's name without the prefix ``starpullm_``."""
        self._pointer = c_void_p()

    def __bool__(self) -> bool:
        return bool(self._pointer)

    @staticmethod
    def to_c(kind: str, handle: object) -> c_void_p:
        """Return the pointer for C."""
        if not isinstance(handle, Handle) or handle._kind != kind:
            found = handle._kind if isinstance(handle, Handle) else type(handle).__name__
            raise TypeError(f"found {found}, expected a handle of a {kind}")
        if not handle:
            raise StateError(f"the {'trainer' if kind == 'session' else kind} is closed, expected one that is open")
        return handle._pointer

    @property
    def address(self) -> Any:
        """The address to which C writes the pointer, or NULL when it destroys the object."""
        return ctypes.byref(self._pointer)
