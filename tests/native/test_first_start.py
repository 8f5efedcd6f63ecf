"""Processes that start StarPU at the same time, when its files about the machine don't exist yet."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from .children import TWO_CORES

pytestmark = pytest.mark.timeout(60)

LOCK_SECONDS = 10
"""After so long a process starts StarPU without the lock."""

VARIABLES = ("STARPU_HOME", "XDG_CACHE_HOME")

START = f"""
import os, sys
from starpullm import Runtime
with Runtime(partition="1x1"):
    opened = {{os.path.realpath("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd")}}
    sys.exit(", ".join(opened & {{os.environ.get(name) for name in {VARIABLES}}}) or None)
"""
"""It ends with the folders that it still has open, and with them their locks, once StarPU runs."""


def starts(stack: ExitStack, home: Mapping[str, Path], count: int) -> list[subprocess.Popen[str]]:
    environment = {**os.environ, **TWO_CORES}
    for variable in VARIABLES:
        environment.pop(variable, None)
    environment.update({variable: str(path) for variable, path in home.items()})
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
    """A process doesn't start StarPU while another one has the lock of a folder that StarPU may take for its home.

    Which one it takes if it has two depends on its version. Two processes with the same two folders in another order
    don't wait for each other, and one whose folders are the same doesn't wait for itself.
    """
    first, second = (tmp_path / name for name in ("first", "second"))
    first.mkdir()
    second.mkdir()
    with ExitStack() as stack:
        folder = os.open(first, os.O_RDONLY)
        stack.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        homes = [(first,), (first, first), (first, second), (second, first)]
        begin = time.monotonic()  # before any process waits: one that waits for its own lock does so for LOCK_SECONDS
        processes = [
            process for home in homes for process in starts(stack, dict(zip(VARIABLES, home, strict=False)), 1)
        ]
        time.sleep(2)
        assert [process.poll() for process in processes] == [None] * len(processes)
        assert [*first.iterdir(), *second.iterdir()] == []
        fcntl.flock(folder, fcntl.LOCK_UN)
        for process in processes:
            _, errors = process.communicate(timeout=30)
            assert (process.returncode, errors) == (0, "")
        assert time.monotonic() - begin < LOCK_SECONDS
        assert list(first.iterdir()) != []


def test_homes_that_cannot_be_written(tmp_path: Path) -> None:
    """StarPU would abort the process."""
    file = tmp_path / "file"
    file.touch()
    code = """
import os, sys
from starpullm import Runtime
from starpullm.errors import InvalidArgumentError
for number, name in enumerate(("STARPU_PERF_MODEL_DIR", "STARPU_HOME", "XDG_CACHE_HOME", "HOME")):
    os.environ[name] = ("/proc/nowhere", sys.argv[1])[number % 2]
    try:
        Runtime()
    except InvalidArgumentError as error:
        print(error)
    del os.environ[name]
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(file)],
        env={name: value for name, value in os.environ.items() if name not in VARIABLES},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    unlike_a_folder = f"{file}/.starpu/sampling: can't be made or written: Not a directory, expected a folder for"
    model, home, cache, user = done.stdout.splitlines()
    assert model.startswith("STARPU_PERF_MODEL_DIR: /proc/nowhere: can't be made or written: No such file or directory")
    assert cache.startswith("XDG_CACHE_HOME: /proc/nowhere/.starpu/sampling: can't be made or written: No such file")
    assert [home, user] == [f"{name}: {unlike_a_folder} StarPU's files" for name in ("STARPU_HOME", "HOME")]
