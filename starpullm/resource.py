"""The common base of Runtime and Trainer: an owner of a native handle."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from starpullm.binding.structs import Handle
from starpullm.errors import StateError

if TYPE_CHECKING:
    from starpullm.runtime import Runtime


class Resource(ABC):
    """Owns a handle of the native library; a context manager that closes it.

    Over ranks, an exception that leaves the block on some ranks ends all of them if they can't close it together.
    """

    _handle: Handle

    @abstractmethod
    def _destroy(self) -> None:
        """Destroy the handle's object in the native library, which makes the handle NULL."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return not self._handle

    def close(self) -> None:
        """Wait for submitted work and destroy the native object; does nothing the second time.

        A runtime with open trainers stays open and raises `StateError`, but for the end of a ``with`` block that an
        exception leaves: that one goes on. A trainer raises `FileError` if its last ``save_state`` failed and nothing
        has reported it; it is closed all the same.
        """
        if self._handle:
            self._destroy()

    @contextmanager
    def _creating(self) -> Iterator[None]:
        """Close what the library has created if an interrupt leaves the rest of ``__init__``, as ``with`` would do."""
        try:
            yield
        except BaseException:
            runtime = self._own_runtime
            if not self._handle or (runtime.comm and not runtime._blocks):  # the other ranks may not know of it
                raise
            with self:
                raise

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
        try:
            self.close()
        except StateError:  # trainers are open
            if error is None:
                raise

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
