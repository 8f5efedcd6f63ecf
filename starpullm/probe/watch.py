"""Watches the processes that write logs: which of them ended first, and where the others are when time is up."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from pathlib import Path

from starpullm.processes.guard import process_end
from starpullm.processes.stacks import native_stacks

_POLL_MS = 50


class ProcessWatch:
    """Watches the processes of which a log appears in a folder, in a thread of its own, until it is stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._running: dict[int, int] = {}  # process by its descriptor
        self._seen: set[int] = set()
        self._ended: list[frozenset[int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[frozenset[int], ...]:
        """End the thread, and return the processes that ended, in this order; those seen at once are one set."""
        self._stop.set()
        self._thread.join()
        for descriptor in self._running:
            os.close(descriptor)
        self._running.clear()
        return tuple(self._ended)

    def stacks(self, seconds: float) -> dict[int, str]:
        """Return the native stacks of the processes that run, by process; it takes at most about so many seconds."""
        deadline = time.monotonic() + seconds
        running = tuple(self._running.values())
        return {pid: native_stacks(pid, max(deadline - time.monotonic(), 0.1)) for pid in running}

    def _run(self) -> None:
        poll = select.poll()
        is_last = False
        while not is_last:
            is_last = self._stop.is_set()
            gone = set(self._look_for_new(poll))
            for descriptor, _ in poll.poll(0 if is_last else _POLL_MS):
                poll.unregister(descriptor)
                gone.add(self._running.pop(descriptor))
                os.close(descriptor)
            if gone:
                self._ended.append(frozenset(gone))

    def _look_for_new(self, poll: select.poll) -> list[int]:
        """Watch processes with new logs; return those that have ended already."""
        gone = []
        for path in self._folder.glob("probe-*"):
            with suppress(ValueError):
                pid = int(path.name.split("-")[1])
                if pid in self._seen:
                    continue
                self._seen.add(pid)
                try:
                    descriptor = process_end(pid)
                except OSError:
                    gone.append(pid)
                    continue
                self._running[descriptor] = pid
                poll.register(descriptor, select.POLLIN)
        return gone
