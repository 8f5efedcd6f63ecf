"""The common base of Runtime and Trainer: an owner of a native handle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Self

from starpullm.binding.structs import Handle

if TYPE_CHECKING:
    from starpullm.processes.ranks import CommonBlocks


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

        Raises
        ------
        StateError
            If this is a runtime with open trainers.
        FileError
            If the last ``save_state`` of this trainer failed, and nothing has reported it. It is closed all the same.
        """
        if self._handle:
            self._destroy()
            self._handle.forget()

    @property
    def _common_blocks(self) -> CommonBlocks | None:
        """The blocks that all ranks enter and leave together; None: there is one rank."""
        return None

    def __enter__(self) -> Self:
        if self._common_blocks is not None:
            self._common_blocks.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._common_blocks is not None:
            self._common_blocks.leave(error)  # closing waits for the other ranks
        self.close()
