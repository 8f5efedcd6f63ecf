"""The end of a process is seen, also where the system has no descriptors of processes."""

from __future__ import annotations

import errno
import os
import select
import subprocess

import pytest

from starpullm.processes.reaper import process_end

ERRORS = {"an older Linux": errno.ENOSYS, "a container": errno.EPERM}


@pytest.mark.parametrize("system", ["this one", "an older Python", *ERRORS])
def test_the_end_of_a_process(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    def refuse(_: int) -> int:
        raise OSError(ERRORS[system], os.strerror(ERRORS[system]))

    if system in ERRORS:
        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    elif system == "an older Python":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with subprocess.Popen(["sleep", "60"]) as process:
        ends = [process_end(process.pid)]
        assert not select.select(ends, [], [], 0.2)[0]
        process.kill()
        assert select.select(ends, [], [], 10)[0]
        ends.append(process_end(process.pid))  # it has ended, but nobody has waited for it
        assert select.select(ends[1:], [], [], 10)[0]
        process.wait()
        with pytest.raises(ProcessLookupError):
            process_end(process.pid)
        for end in ends:
            os.close(end)
