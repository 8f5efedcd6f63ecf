"""Commands that SIGTERM ends leave nothing behind, neither files nor processes."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from .children import TWO_CORES, cli_command, finish, started

TIMEOUT = 60
BENCH = ("bench", "--model", "tiny", "--iterations", 100000)
BLAS = ("--against", "blas", "--blas-library", "scipy-openblas32")


@pytest.mark.parametrize(
    "arguments",
    [BENCH, (*BENCH, *BLAS), ("scenario", "--minutes", 5), ("scenario", "--minutes", 5, "--ranks", 2)],
    ids=["bench", "bench against", "scenario", "scenario over ranks"],
)
def test_sigterm_leaves_nothing_behind(tmp_path: Path, arguments: tuple[object, ...]) -> None:
    environment = {**TWO_CORES, "TMPDIR": str(tmp_path)}
    with started(cli_command(*arguments), timeout=TIMEOUT, environment=environment) as process:
        deadline = time.monotonic() + TIMEOUT / 2
        while not (children := psutil.Process(process.pid).children(recursive=True)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert children, "no child was started"
        assert list(tmp_path.iterdir()), "no folder was made"
        time.sleep(1)  # so that the children are at work
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        finished = finish(process)
        psutil.wait_procs(children, timeout=5)
    finished.check(128 + signal.SIGTERM)
    assert [child.pid for child in children if child.is_running()] == []
    assert list(tmp_path.iterdir()) == []
    assert finished.stderr == ""
