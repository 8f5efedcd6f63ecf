"""The library under the sanitizers, with warnings as errors: the C tests, and the suite's check of its kernels.

They need the checkout, CMake and a compiler, as ci/bootstrap.sh leaves them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from starpullm.checks.kernels.kernel_bits import KernelBits
from starpullm.checks.kernels.kernel_cases import CASES
from starpullm.checks.result import Outcome
from starpullm.processes.lock import machine_lock

from .children import run_function

CHECKOUT = Path(__file__).parents[2]
LIBRARY = CHECKOUT / ".cache" / "build" / "asan" / "libstarpullm.so"

KINDS_OF_CASES = 42
"""So many cases of a kernel have each kind of size: see `starpullm.checks.kernels.kernel_cases`."""


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=CHECKOUT / "native", capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    with machine_lock():  # nothing else runs or measures beside a build
        run("cmake", "--preset", "asan", "-DSTARPULLM_TESTS=ON", "-DSTARPULLM_WARNINGS_AS_ERRORS=ON")
        run("cmake", "--build", "--preset", "asan", "--parallel", "2")


@pytest.mark.timeout(600)
def test_under_the_sanitizers() -> None:
    run("ctest", "--preset", "asan", "--parallel", "2")


def check_kernels() -> list[str]:
    results = [KernelBits().of(kernel, 1, KINDS_OF_CASES) for kernel in CASES]
    return [line for result in results if result.outcome is not Outcome.PASSED for line in result.lines()]


@pytest.mark.timeout(600)
def test_kernels_under_the_sanitizers() -> None:
    runtimes = [run("cc", f"-print-file-name=lib{name}.so").strip() for name in ("asan", "ubsan")]
    environment = {"STARPULLM_LIB": str(LIBRARY), "ASAN_OPTIONS": "detect_leaks=0"}
    assert run_function(check_kernels, environment=environment | {"LD_PRELOAD": ":".join(runtimes)}, timeout=400) == []
