"""The C tests: under the sanitizers, with warnings as errors; and each allocation that fails, in the installed library.

Collected by pytest; needs the checkout, CMake and a compiler, as ci/bootstrap.sh leaves them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import starpullm
from starpullm.processes.lock import machine_lock

from .children import TWO_CORES

NATIVE = Path(__file__).parents[2] / "native"
LIBRARIES = Path(starpullm.__file__).with_name("lib")


@pytest.mark.timeout(600)
def test_under_the_sanitizers() -> None:
    with machine_lock():  # tests/mutation builds in the same directory
        run("cmake", "--preset", "asan", "-DSTARPULLM_TESTS=ON", "-DSTARPULLM_WARNINGS_AS_ERRORS=ON")
        run("cmake", "--build", "--preset", "asan", "--parallel", "2")
    run("ctest", "--preset", "asan", "--parallel", "2")


def test_allocations_that_fail(tmp_path: Path) -> None:
    """The program's functions in place of malloc and the like count and refuse; sanitizers have their own."""
    program = tmp_path / "test_allocation"
    sources = ("preload/allocations.c", "tests/abi/test_allocation.c")
    options = ("-std=gnu11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wall", "-Wextra", "-Werror", "-Iinclude")
    linked = (f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}", "-lstarpullm", "-ldl", "-lpthread")
    # The library has to find the program's functions: -rdynamic.
    run("cc", *options, *sources, "-rdynamic", *linked, "-o", str(program))
    run(str(program), str(tmp_path), STARPU_HOME=str(tmp_path), **TWO_CORES)


def run(*command: str, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=NATIVE,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
