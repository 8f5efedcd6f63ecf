"""Runtimes as C starts them, and as they stay in its memory."""

from __future__ import annotations

import ctypes
from typing import Any

from starpullm.binding import prototypes, structs
from starpullm.runtime import Runtime


def start_as_is(**members: Any) -> None:
    """Start a runtime with ``struct starpullm_runtime_options`` as it is given, and close it.

    What isn't given is as in ``Runtime()``.
    """
    options = structs.new("runtime_options", **{"workers": 1, "threads_per_worker": 1, "scheduler": b"lws", **members})
    handle = structs.Handle("runtime")
    prototypes.call("runtime_create", options, handle.address)
    prototypes.call("runtime_destroy", handle.address)


def as_it_is(runtime: Runtime) -> structs.Handle:
    """Return a handle of a runtime that stays as it is when the runtime is closed, as a pointer in C does."""
    handle = structs.Handle("runtime")
    handle._pointer = ctypes.c_void_p(runtime._handle._pointer.value)
    return handle
