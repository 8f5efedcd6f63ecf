"""The common base of Runtime and Trainer: an owner of a native handle."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Self

from starpullm.binding.structs import Handle

if TYPE_CHECKING:
    from starpullm.runtime import Runtime


class Resource(ABC):
    """Owns a handle of the native library; a context manager that closes it.

    Over ranks, an exception that leaves the block on some ranks ends all of them if they can't close it together.
    """

    _handle: Handle

    @abstractmethod
    def _destroy(self) -> None:
        """Destroy the handle's object in the native library."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return not self._handle

    def close(self) -> None:
        """Wait for submitted work and destroy the native object; does nothing the second time.

        A runtime with open trainers raises `StateError`. A trainer raises `FileError` if its last ``save_state`` failed
        and nothing has reported it; it is closed all the same.
        """
        if self._handle:
            self._destroy()
            self._handle.forget()

    @property
    @abstractmethod
    def _own_runtime(self) -> Runtime:
        """The runtime that this belongs to, or is."""

    def __enter__(self) -> Self:
        if self._own_runtime._blocks is not None:
            self._own_runtime._blocks.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_runtime._blocks is not None:
            self._own_runtime._blocks.leave(error)  # closing waits for the other ranks
        self.close()

    def __del__(self) -> None:
        # What is dropped without close() would keep the runtime from closing, or this process from starting another.
        # Over ranks closing waits for the other ranks, for ever if they don't drop theirs. If __init__ wasn't
        # completed, there may be nothing to close; at the end of the program closing is of no use.
        if not getattr(self, "_handle", None) or sys.is_finalizing():
            return
        if self._own_runtime.comm is None:
            self.close()
        else:
            sentence = f"{self!r} was dropped, expected close() on every rank"
            warnings.warn(sentence, ResourceWarning, stacklevel=2, source=self)
