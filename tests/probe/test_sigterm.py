"""A probe that SIGTERM ends leaves nothing behind: neither the program nor a file."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil

from ..native.children import cli_command, finish, started
from .conftest import Compile

TIMEOUT = 60


def test_sigterm_leaves_nothing_behind(compiled: Compile, tmp_path: Path) -> None:
    command = cli_command("probe", "--", compiled("many"), 100000, 100, 8)
    with started(command, timeout=TIMEOUT, environment={"TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + TIMEOUT / 2
        watched = psutil.Process(process.pid)
        while not any(child.name() == "many" for child in watched.children(recursive=True)):
            assert time.monotonic() < deadline, "the program was not started"
            time.sleep(0.05)
        children = watched.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        finished = finish(process)
        psutil.wait_procs(children, timeout=5)
    finished.check(128 + signal.SIGTERM)
    assert [child.pid for child in children if child.is_running()] == []
    assert list(tmp_path.iterdir()) == []
