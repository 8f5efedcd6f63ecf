"""Settings that all tests share; pytest reads it first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def starpu_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep StarPU's calibration files out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        if "STARPU_HOME" not in os.environ:
            patch.setenv("STARPU_HOME", str(tmp_path_factory.mktemp("starpu")))
        yield
