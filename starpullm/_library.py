"""Finds and opens the shared library, on first use; importing starpullm never does.

Called by ``_native.py``, and by ``machine.py`` to say what else is there.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from pathlib import Path

from starpullm.errors import LibraryNotFoundError

__all__ = ["ENVIRONMENT_VARIABLE", "find_blas", "find_library", "open_library"]

ENVIRONMENT_VARIABLE = "STARPULLM_LIB"
_FILE_NAME = "libstarpullm.so"


def find_library() -> Path:
    """Return the library's path: ``STARPULLM_LIB`` if it is set, else the one installed with the package.

    Raises
    ------
    LibraryNotFoundError
        If there is no file at that place.
    """
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        path = Path(chosen).absolute()  # the dynamic linker looks elsewhere for a bare name
        if not path.is_file():
            raise LibraryNotFoundError(f"{path}: no such file, expected the library that {ENVIRONMENT_VARIABLE} names")
        return path
    path = Path(__file__).parent / "lib" / _FILE_NAME
    if not path.is_file():
        raise LibraryNotFoundError(
            f"{path}: not found, expected the native library there (is the package installed, or imported "
            f"from a source tree?); {ENVIRONMENT_VARIABLE} can name another"
        )
    return path


def open_library() -> ctypes.CDLL:
    """Open the library.

    Raises
    ------
    LibraryNotFoundError
        If it isn't there or the dynamic linker refuses it, with the linker's reason.
    """
    path = find_library()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryNotFoundError(f"{path}: could not be opened: {error}") from error


def find_blas() -> str:
    """Return the name of a CBLAS that the dynamic linker finds, or an empty text; nothing is opened."""
    names = ("openblas", "mkl_rt", "blis", "cblas")
    return next((found for name in names if (found := ctypes.util.find_library(name))), "")
