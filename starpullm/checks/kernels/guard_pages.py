"""Memory that ends where a page without access begins, for inputs: reading past their end ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from starpullm.checks.kernels.draw_case import Buffer, Words
from starpullm.errors import RuntimeFailureError

_PROT_NONE: Final = 0
_WORD: Final = np.dtype(np.uint32).itemsize


class GuardPages:
    """Copies of buffers that end before a guard page; the memory is used again for buffers of the same name."""

    def __init__(self) -> None:
        self._memory: dict[str, Words] = {}

    def copies(self, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
        """Return copies without the guard behind the array; valid until the next call."""
        return {name: self._copy(name, buffer) for name, buffer in buffers.items()}

    def _copy(self, name: str, buffer: Buffer) -> Buffer:
        room = self._memory.get(name)
        if room is None or room.size < buffer.end:
            room = self._memory[name] = _guarded(buffer.end)
        memory = room[room.size - buffer.end :]
        memory[...] = buffer.memory[: buffer.end]
        return replace(buffer, memory=memory)


def _guarded(words: int) -> Words:
    """Return at least so many words, up to the end of the page before one without access."""
    pages = -(-words * _WORD // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    room = np.frombuffer(memory, np.uint32)
    usable = room[: pages * mmap.PAGESIZE // _WORD]
    libc = ctypes.CDLL(None, use_errno=True)
    last = ctypes.c_void_p(room.ctypes.data + pages * mmap.PAGESIZE)
    if libc.mprotect(last, ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE):
        raise RuntimeFailureError(f"mprotect: error {ctypes.get_errno()}, expected a page without access")
    return usable
