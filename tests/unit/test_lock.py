"""The machine lock: a second process waits, and says for which one."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from starpullm.processes.lock import LOCK_VARIABLE, machine_lock

HOLD = """
import sys
from starpullm.processes.lock import machine_lock
with machine_lock(print):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_who_waits_says_for_which_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    said: list[str] = []
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        def say(sentence: str) -> None:
            said.append(sentence)
            assert holder.stdin is not None
            holder.stdin.write(b"\n")
            holder.stdin.flush()

        with machine_lock(say), machine_lock(say):
            pass
    assert len(said) == 1
    assert said[0].startswith(f"waiting for process {holder.pid}, {sys.executable} -c ")
    assert said[0].endswith(f"which uses the machine (lock {tmp_path / 'lock'})")
    with machine_lock(said.append):
        assert len(said) == 1


def test_a_full_disk_takes_only_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files stands for a full disk: the lock holds, and can be taken again."""
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    said: list[str] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        for _ in range(2):
            with machine_lock(said.append):
                assert (tmp_path / "lock").read_bytes() == b""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == []


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child has the same open file as long as it lives."""
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    with machine_lock():
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with (tmp_path / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
