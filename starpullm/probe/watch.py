"""Watches the processes that write logs: which of them ended first, and where the others are when time is up."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from starpullm.processes.reaper import process_end
from starpullm.processes.stacks import native_stacks

_POLL_MS = 50


class ProcessWatch:
    """Watches the processes of which a log appears in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._poll = select.poll()
        self._running: dict[int, int] = {}  # process by its descriptor
        self._seen: set[int] = set()
        self.ended: list[frozenset[int]] = []
        """Processes that ended, in this order; those seen at once are one set."""

    def look(self, milliseconds: int = _POLL_MS) -> None:
        """Look for new processes, and wait at most so long for the end of one."""
        gone = set()
        for pid in {int(path.name.split("-")[1]) for path in self._folder.glob("probe-*")} - self._seen:
            self._seen.add(pid)
            try:
                descriptor = process_end(pid)
            except OSError:
                gone.add(pid)
                continue
            self._running[descriptor] = pid
            self._poll.register(descriptor, select.POLLIN)
        for descriptor, _ in self._poll.poll(milliseconds):
            self._poll.unregister(descriptor)
            gone.add(self._running.pop(descriptor))
            os.close(descriptor)
        if gone:
            self.ended.append(frozenset(gone))

    def close(self) -> None:
        """Watch no process any more."""
        for descriptor in self._running:
            os.close(descriptor)

    def stacks(self, seconds: float) -> dict[int, str]:
        """Return the native stacks of the processes that run, by process; it takes at most about so many seconds."""
        deadline = time.monotonic() + seconds
        running = tuple(self._running.values())
        return {pid: native_stacks(pid, max(deadline - time.monotonic(), 0.1)) for pid in running}
