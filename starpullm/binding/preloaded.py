"""The libraries of this package that a child preloads."""

from __future__ import annotations

import ctypes
from pathlib import Path

from starpullm.errors import LibraryNotFoundError, StateError


def find_preloaded(file_name: str, purpose: str) -> Path:
    """Return the path of such a library; its purpose is for the message.

    Raises
    ------
    LibraryNotFoundError
        If it isn't there.
    """
    path = Path(__file__).parents[1] / "lib" / file_name
    if not path.is_file():
        raise LibraryNotFoundError(f"{path}: not found, expected the library that {purpose} there")
    return path


def open_preloaded(file_name: str, function: str) -> ctypes.CDLL:
    """Return this process, which has the library's functions; one of them is named, to be looked for.

    A library that is opened now, without having been preloaded, would stand between nothing.

    Raises
    ------
    StateError
        If the library isn't preloaded into this process.
    """
    process = ctypes.CDLL(None)
    if not hasattr(process, function):
        raise StateError(f"{file_name} isn't preloaded, expected it in this process's LD_PRELOAD")
    return process
