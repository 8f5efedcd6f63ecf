"""Finds and opens the shared library on its first use, and finds a BLAS; importing starpullm opens nothing."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

from starpullm.errors import InvalidArgumentError, LibraryNotFoundError, MissingDependencyError

ENVIRONMENT_VARIABLE = "STARPULLM_LIB"
_FILE_NAME = "libstarpullm.so"
_PROBE_NAME = "libstarpullm_probe.so"


def find_library() -> Path:
    """Return the library's path: ``STARPULLM_LIB`` if it is set, else the one installed with the package."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        path = Path(chosen).absolute()  # the dynamic linker looks elsewhere for a bare name
        if not path.is_file():
            raise LibraryNotFoundError(f"{path}: no such file, expected the library that {ENVIRONMENT_VARIABLE} names")
        return path
    path = Path(__file__).parents[1] / "lib" / _FILE_NAME
    if not path.is_file():
        raise LibraryNotFoundError(
            f"{path}: not found, expected the native library there (is the package installed, or imported "
            f"from a source tree?); {ENVIRONMENT_VARIABLE} can name another"
        )
    return path


class StarpuLimits(NamedTuple):
    """What the StarPU that a library was built against can do at most."""

    max_workers: int
    max_contexts: int


def starpu_limits(path: Path) -> StarpuLimits:
    """Return the limits that a library states in its file; it isn't opened (native/src/runtime/features.c)."""
    stated = re.search(rb"starpullm: StarPU of (\d+) workers, (\d+) contexts", path.read_bytes())
    if stated is None:
        raise LibraryNotFoundError(f"{path}: doesn't state its StarPU's limits, expected a library of starpullm")
    return StarpuLimits(*map(int, stated.groups()))


def find_probe() -> Path:
    """Return the path of the probe, which StarPU loads into other programs; it lies beside the library."""
    path = find_library().with_name(_PROBE_NAME)
    if not path.is_file():
        raise LibraryNotFoundError(f"{path}: not found, expected the probe beside the native library")
    return path


def open_library() -> ctypes.CDLL:
    """Open the library; if it can't, the `LibraryNotFoundError` has the dynamic linker's reason."""
    path = find_library()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryNotFoundError(f"{path}: could not be opened: {error}") from error


def find_blas(name: str | os.PathLike[str] | None = None) -> str:
    """Return the path or name by which the dynamic linker opens a CBLAS; nothing is opened.

    ``name`` is a path, or a name for the dynamic linker, such as ``openblas``. Without it, the result is the first that
    it finds of OpenBLAS, MKL, BLIS and the reference, or else the package ``scipy-openblas32``.
    """
    if name is None:
        found = (ctypes.util.find_library(usual) for usual in _BLAS_NAMES)
        library = next((soname for soname in found if soname), "") or _blas_from_pypi()
        if not library:
            raise MissingDependencyError(
                f"BLAS: none of {', '.join(_BLAS_NAMES)} was found, expected one: apt-get install libopenblas0-pthread "
                "or pip install scipy-openblas32"
            )
        return library
    text = os.fspath(name)
    path = Path(text)
    if os.sep in text or path.suffix == ".so":
        if not path.is_file():
            raise InvalidArgumentError(f"{text}: no such file, expected a BLAS's shared library")
        return str(path.absolute())  # the dynamic linker looks elsewhere for a bare name
    library = ctypes.util.find_library(text) or (_blas_from_pypi() if text == "scipy-openblas32" else "")
    if not library:
        raise InvalidArgumentError(
            f'blas_library: found "{text}", which the dynamic linker doesn\'t know, expected a path, or a name that it '
            "knows, such as openblas"
        )
    return library


_BLAS_NAMES = ("openblas", "mkl_rt", "blis", "cblas")


def _blas_from_pypi() -> str:
    """Return the library of the package scipy-openblas32, or an empty text if it isn't installed."""
    package = importlib.util.find_spec("scipy_openblas32")
    if package is None or not package.submodule_search_locations:
        return ""
    path = Path(package.submodule_search_locations[0], "lib", "libscipy_openblas.so")
    return str(path) if path.is_file() else ""
