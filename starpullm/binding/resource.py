"""What Runtime and Trainer have in common: something open behind them that is closed once.

``runtime.py`` and ``trainer.py`` build on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from starpullm.binding.structs import Handle

__all__ = ["Resource"]


class Resource(ABC):
    """Owns a handle of the native library; a context manager that closes it."""

    _handle: Handle

    @abstractmethod
    def _destroy(self) -> None:
        """Give the handle back to the native library."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return not self._handle

    def close(self) -> None:
        """Wait for what was submitted and free what is behind; does nothing the second time.

        Raises
        ------
        StateError
            If a runtime has trainers that are open.
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
