"""Processes that start StarPU at the same time, when its files about the machine don't exist yet."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from .children import TWO_CORES

pytestmark = pytest.mark.timeout(60)

START = "from starpullm import Runtime; Runtime(partition='1x1').close()"


def starts(stack: ExitStack, home: Path, count: int) -> list[subprocess.Popen[str]]:
    environment = {**os.environ, **TWO_CORES, "STARPU_HOME": str(home)}
    environment.pop("XDG_CACHE_HOME", None)
    processes = []
    for _ in range(count):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", START], env=environment, stderr=subprocess.PIPE, text=True
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        processes.append(process)
    return processes


def test_one_after_the_other(tmp_path: Path) -> None:
    """A process doesn't start StarPU while another one has the home folder's lock."""
    with ExitStack() as stack:
        folder = os.open(tmp_path, os.O_RDONLY)
        stack.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        (process,) = starts(stack, tmp_path, 1)
        time.sleep(2)
        assert process.poll() is None
        assert list(tmp_path.iterdir()) == []
        fcntl.flock(folder, fcntl.LOCK_UN)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        assert list(tmp_path.iterdir()) != []


def test_several_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for attempt in range(3):
            home = tmp_path / str(attempt)
            home.mkdir()
            for process in starts(stack, home, 4):
                _, errors = process.communicate(timeout=30)
                assert (process.returncode, errors) == (0, "")
