"""Lets StarPU refuse one of the tasks and messages that libstarpullm submits, in a process made for it.

The library that does so has to be preloaded; ``native/preload/refusals.h`` describes it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from starpullm.binding.preloaded import find_preloaded, open_preloaded

_FILE_NAME = "libstarpullm_refusals.so"


def find_library() -> Path:
    """Return the path of the library that has to be preloaded, which is installed with the package.

    Raises
    ------
    LibraryNotFoundError
        If it isn't there.
    """
    return find_preloaded(_FILE_NAME, "lets StarPU refuse calls")


def refuse_call(number: int) -> int:
    """Let StarPU refuse the ``number``-th of the next tasks and messages, from 1; 0: none.

    Returns
    -------
    int
        How many more of them would have led to the one that was chosen before; 0: it was refused, or none was chosen.

    Raises
    ------
    StateError
        If the library isn't preloaded into this process.
    """
    return int(_library().starpullm_refusals_call(number))


def refuse_message(number: int) -> int:
    """Let StarPU-MPI refuse the ``number``-th of the next messages, else as ``refuse_call``."""
    return int(_library().starpullm_refusals_message(number))


@cache
def _library() -> ctypes.CDLL:
    process = open_preloaded(_FILE_NAME, "starpullm_refusals_call")
    for function in (process.starpullm_refusals_call, process.starpullm_refusals_message):
        function.argtypes, function.restype = [ctypes.c_long], ctypes.c_long
    return process
