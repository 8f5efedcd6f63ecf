"""The exceptions of starpullm: one base class, and each is also a built-in exception of its kind."""

from __future__ import annotations

__all__ = [
    "FileError",
    "FormatError",
    "InvalidArgumentError",
    "LibraryNotFoundError",
    "MissingDependencyError",
    "NotFiniteError",
    "OutOfMemoryError",
    "RuntimeFailureError",
    "StarpullmError",
    "StateError",
    "TokenRangeError",
]


class StarpullmError(Exception):
    """Base class; the text is one sentence that says what is wrong, where, what was expected and what was found."""


class FormatError(StarpullmError, ValueError):
    """Raised when a file doesn't have the expected format: magic number, version, header, size, missing keys."""


class InvalidArgumentError(StarpullmError, ValueError):
    """Raised when an argument or option is invalid or not supported; nothing has been changed."""


class TokenRangeError(InvalidArgumentError):
    """Raised when a token id is outside the vocabulary or outside what a token file can hold."""


class StateError(StarpullmError, RuntimeError):
    """Raised when a call isn't possible now: use after close, a second runtime, a tensor that doesn't exist yet."""


class FileError(StarpullmError, OSError):
    """Raised when the operating system refuses to open, read or write a file; its number and the file may be known."""

    def __init__(self, message: str, errno: int | None = None, filename: str | None = None) -> None:
        super().__init__(message)
        self.errno = errno
        self.strerror = message
        self.filename = filename

    def __str__(self) -> str:
        """Return the message without OSError's number in front."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[type[FileError], tuple[str, int | None, str | None]]:
        """Keep number and file name when an error crosses a process boundary."""
        return type(self), (str(self), self.errno, self.filename)


class LibraryNotFoundError(StarpullmError, OSError):
    """Raised on the first use of the native library when it can't be found or opened."""


class MissingDependencyError(StarpullmError, ImportError):
    """Raised when a feature needs an optional package or program that isn't installed."""


class OutOfMemoryError(StarpullmError, MemoryError):
    """Raised when there isn't enough memory for a model, a batch or a file's content."""


class NotFiniteError(StarpullmError, ArithmeticError):
    """Raised when a loss or a probability is NaN or infinite: the training has diverged, or the model is damaged."""


class RuntimeFailureError(StarpullmError, RuntimeError):
    """Raised when StarPU can't start, partition the machine or run a task, or when a child process or a job fails."""
