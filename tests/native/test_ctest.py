"""The C tests: under the sanitizers, with warnings as errors.

Collected by pytest; needs the checkout, CMake and a compiler, as ci/bootstrap.sh leaves them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from starpullm.processes.lock import machine_lock

NATIVE = Path(__file__).parents[2] / "native"


@pytest.mark.timeout(600)
def test_under_the_sanitizers() -> None:
    with machine_lock():  # tests/mutation builds in the same directory
        run("cmake", "--preset", "asan", "-DSTARPULLM_TESTS=ON", "-DSTARPULLM_WARNINGS_AS_ERRORS=ON")
        run("cmake", "--build", "--preset", "asan", "--parallel", "2")
    run("ctest", "--preset", "asan", "--parallel", "2")


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=NATIVE, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
