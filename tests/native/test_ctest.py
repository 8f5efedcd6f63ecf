"""The C tests, built and run with the presets: warnings are errors, and once more under the sanitizers.

Collected by pytest; needs the checkout, CMake and a compiler, as ci/bootstrap.sh leaves them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("preset", ["dev", "asan"])
def test_ctest(preset: str) -> None:
    for command in (
        ["cmake", "--preset", preset],
        ["cmake", "--build", "--preset", preset, "--parallel", "2"],
        ["ctest", "--preset", preset],
    ):
        run = subprocess.run(command, cwd=NATIVE, capture_output=True, text=True, timeout=500, check=False)
        assert run.returncode == 0, f"{' '.join(command)}\n{run.stdout}{run.stderr}"
