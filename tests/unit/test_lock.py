"""The machine lock: a second process waits, and says for which one."""

from __future__ import annotations

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
