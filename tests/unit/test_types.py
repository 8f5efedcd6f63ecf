"""The static types of the whole project, by mypy: a test, so that other tests run beside it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_types() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("there is no mypy: pip install mypy scipy-stubs types-psutil")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
