"""Lets StarPU refuse one of the calls with which libstarpullm submits, in a process made for it.

The fixture `refusing_library` compiles the library that has to be preloaded; native/tests/preload/refusals.h describes
it.
"""

from __future__ import annotations

import ctypes


def refuse_call(number: int) -> int:
    """Let StarPU refuse the ``number``-th of the next tasks, messages, reads of a saved state and starts of transfers.

    They are counted from 1; 0: none is refused.

    Return how many more of them would have led to the one that was chosen before; 0: it was refused, or none was.
    """
    return int(ctypes.CDLL(None).starpullm_refusals_call(ctypes.c_long(number)))
