"""The common base of Runtime and Trainer: an owner of a native handle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from starpullm.binding.structs import Handle


class Resource(ABC):
    """Owns a handle of the native library; a context manager that closes it."""

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

        Raises
        ------
        StateError
            If this is a runtime with open trainers.
        """
        if self._handle:
            self._destroy()
            self._handle.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
