"""Counts this process's allocations by the place of the call.

The library that does so, which ``native/preload/allocations.h`` describes, has to be preloaded: a `StateError` is
raised if it isn't.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starpullm.errors import LibraryNotFoundError, StateError

_FILE_NAME = "libstarpullm_allocations.so"


class Site(NamedTuple):
    """A place that has allocated, and the thread that did."""

    module: str
    """Path of the library or program; empty: unknown."""
    function: str
    """The exported function before the place; empty: none."""
    offset: int
    """Of the call in the module."""
    caller: int
    """The address that the call returns to, in this process."""
    thread: int
    made: int
    """Allocations that were counted."""
    live: int
    """Those of them that haven't been freed."""
    live_bytes: int


_NUMBERS = ("offset", "caller", "thread", "made", "live", "live_bytes")


class _Site(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_char_p),
        ("function", ctypes.c_char_p),
        *((name, ctypes.c_uint64) for name in _NUMBERS),
    )


def find_library() -> Path:
    """Return the path of the library that has to be preloaded, which is installed with the package."""
    path = Path(__file__).parents[1] / "lib" / _FILE_NAME
    if not path.is_file():
        raise LibraryNotFoundError(f"{path}: not found, expected the library that counts allocations there")
    return path


def preloading(*others: Path) -> dict[str, str]:
    """Return the environment variable by which a child preloads the library, others, and what this process preloads."""
    paths = [str(find_library()), *map(str, others), os.environ.get("LD_PRELOAD")]
    return {"LD_PRELOAD": ":".join(filter(None, paths))}


def start() -> None:
    """Forget what was counted, and count allocations from now on."""
    counting_library().starpullm_allocations_start()


def stop() -> None:
    """Count no further allocations; what is freed later is still noticed."""
    counting_library().starpullm_allocations_stop()


def refuse(caller: int, number: int) -> None:
    """Refuse one allocation of a site, the ``number``-th from now on."""
    counting_library().starpullm_allocations_refuse(caller, number)


def not_reached() -> int:
    """Refuse none from now on; return how many more of the site would have led to the one that was chosen."""
    missing: int = counting_library().starpullm_allocations_not_reached()
    return missing


def sites() -> list[Site]:
    """Return the sites of the allocations that were counted."""
    read = counting_library().starpullm_allocations_sites
    room = read(None, 0)
    found = (_Site * room)()
    return [
        Site(_text(site.module), _text(site.function), *(getattr(site, name) for name in _NUMBERS))
        for site in found[: min(read(found, room), room)]
    ]


def is_counting() -> bool:
    """Return whether the library is preloaded."""
    return hasattr(ctypes.CDLL(None), "starpullm_allocations_start")


@cache
def counting_library() -> ctypes.CDLL:
    """Return this process: a library that was opened now, without having been preloaded, would count nothing."""
    process = ctypes.CDLL(None)
    if not is_counting():
        raise StateError(f"{_FILE_NAME} isn't preloaded, expected it in this process's LD_PRELOAD")
    process.starpullm_allocations_start.restype = None
    process.starpullm_allocations_stop.restype = None
    process.starpullm_allocations_refuse.restype = None
    process.starpullm_allocations_refuse.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    process.starpullm_allocations_not_reached.restype = ctypes.c_size_t
    process.starpullm_allocations_sites.restype = ctypes.c_size_t
    process.starpullm_allocations_sites.argtypes = [ctypes.POINTER(_Site), ctypes.c_size_t]
    return process


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
