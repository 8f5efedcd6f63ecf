"""Runtimes as C starts them, and as they stay in its memory."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from starpullm.binding import prototypes, structs
from starpullm.machine import machine_info
from starpullm.runtime import Runtime


def start_in_c(**members: Any) -> None:
    """Start a runtime with ``struct starpullm_runtime_options`` as it is given, and close it.

    What isn't given is as in ``Runtime()``.
    """
    options = structs.new("runtime_options", **{"workers": 1, "threads_per_worker": 1, "scheduler": b"lws", **members})
    handle = structs.Handle("runtime")
    prototypes.call("runtime_create", options, handle.address)
    prototypes.call("runtime_destroy", handle.address)


def handle_of(runtime: Runtime) -> structs.Handle:
    """Return a handle of a runtime that stays as it is when the runtime is closed, as a pointer in C does."""
    handle = structs.Handle("runtime")
    handle._pointer = ctypes.c_void_p(runtime._handle._pointer.value)
    return handle


def loaded_starpu() -> ctypes.CDLL:
    """Return the StarPU that the library under test has loaded."""
    machine_info()
    return loaded_library("libstarpu-")


def loaded_library(*names: str) -> ctypes.CDLL:
    """Return the one library of this process whose name begins with one of these."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text("utf-8").splitlines() if "/" in line}
    (found,) = [path for path in mapped if Path(path).name.startswith(names)]
    return ctypes.CDLL(found)
