"""The C tests, under the sanitizers; warnings are errors.

Collected by pytest; needs the checkout, CMake and a compiler, as ci/bootstrap.sh leaves them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from starpullm.processes.lock import machine_lock

NATIVE = Path(__file__).parents[2] / "native"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("preset", "targets", "tests"),
    [
        ("release", ("--target", "test_allocation"), ("--tests-regex", "^allocation$")),
        ("asan", (), ()),
    ],
    ids=["allocations", "sanitizers"],
)
def test_ctest(preset: str, targets: tuple[str, ...], tests: tuple[str, ...]) -> None:
    """Sanitizers have allocation functions of their own, so that test needs the other build; no other does."""
    with machine_lock():  # tests/mutation builds in the same directory
        run("cmake", "--preset", preset, "-DSTARPULLM_TESTS=ON", "-DSTARPULLM_WARNINGS_AS_ERRORS=ON")
        run("cmake", "--build", "--preset", preset, "--parallel", "2", *targets)
    run("ctest", "--preset", preset, "--parallel", "2", *tests)


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=NATIVE, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
