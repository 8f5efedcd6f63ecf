"""Shared libraries that aren't ours, or of another version, are refused with their path; a relative name is a path."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from starpullm.binding import declarations
from starpullm.binding.library import find_library, starpu_limits
from starpullm.errors import LibraryNotFoundError
from starpullm.machine import inspect_machine
from starpullm.runtime import schedulers

from .children import Reply, assert_refused, attempt, run_function


def use_library() -> Reply:
    return attempt(schedulers)


def reply_with_library(library: str | Path, cwd: Path | None = None) -> Reply:
    return run_function(use_library, environment={"STARPULLM_LIB": str(library)}, cwd=cwd)


def test_no_library(tmp_path: Path) -> None:
    path = tmp_path / "nothing.so"
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "no such file", "STARPULLM_LIB")


def test_directory_as_library(tmp_path: Path) -> None:
    assert_refused(reply_with_library(tmp_path), LibraryNotFoundError, str(tmp_path), "STARPULLM_LIB")


@pytest.mark.parametrize("content", [b"", b"some text\n", b"\x7fELF and no more"])
def test_other_file_as_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(content)
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "could not be opened")


def compiled(path: Path, functions: dict[str, int]) -> Path:
    """Compile a shared library with functions that return a constant."""
    source = path.with_suffix(".c")
    source.write_text("".join(f"int {name}(void) {{ return {value}; }}\n" for name, value in functions.items()))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True, timeout=60)
    return path


def test_library_without_our_functions(tmp_path: Path) -> None:
    path = compiled(tmp_path / "other.so", {"something_else": 1})
    assert_refused(reply_with_library(path), LibraryNotFoundError, str(path), "no function starpullm_", "expected")


def test_library_of_another_abi(tmp_path: Path) -> None:
    functions = {f"starpullm_{name}": 0 for name in declarations.functions()}
    own = declarations.abi_version()
    path = compiled(tmp_path / "newer.so", {**functions, "starpullm_abi_version": own + 1})
    parts = str(path), f"ABI version is {own + 1}", f"expected {own}"
    assert_refused(reply_with_library(path), LibraryNotFoundError, *parts)


def test_library_in_the_current_directory(tmp_path: Path) -> None:
    """A relative name is a path; the linker doesn't search for it elsewhere."""
    (tmp_path / "mine.so").symlink_to(find_library().resolve())
    reply = reply_with_library("mine.so", cwd=tmp_path)
    assert reply["raised"] is None, reply


def own_limits() -> list[int]:
    machine = inspect_machine()
    return [machine[f"starpu_{name}"] for name in ("max_workers", "max_contexts")]


def test_limits_of_starpu_stand_in_the_file() -> None:
    """The file of the library says what the library says."""
    assert list(starpu_limits(find_library())) == run_function(own_limits)
