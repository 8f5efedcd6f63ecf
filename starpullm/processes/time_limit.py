"""A time limit that doesn't count what threads wait for a processor: a loaded machine isn't a hang."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_MOST_WAITS = 9
"""How often the limit is granted again at most."""

_SHORTEST_SECONDS = 0.1
"""What is granted again at least: any thread waits for microseconds."""


class TimeLimit:
    """So many seconds from now on, and what a thread of these processes and their children has waited meanwhile.

    The kernel counts that for each thread. Where it doesn't (CONFIG_SCHED_INFO, CONFIG_PROC_CHILDREN), the seconds
    alone are the limit.
    """

    def __init__(self, seconds: float, processes: Sequence[int] = ()) -> None:
        self.seconds = seconds
        self.waited = 0.0
        """What was granted again."""
        self._processes = processes
        self._before = _waits(processes)
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left; 0: it is over."""
        if self._end + self.waited <= time.monotonic() and self.waited < _MOST_WAITS * self.seconds:
            waits = [wait - self._before.get(thread, 0.0) for thread, wait in _waits(self._processes).items()]
            waited = min(max(waits, default=0.0), _MOST_WAITS * self.seconds)
            if waited >= self.waited + _SHORTEST_SECONDS:
                self.waited = waited
        return max(self._end + self.waited - time.monotonic(), 0.0)


def _waits(processes: Iterable[int]) -> dict[int, float]:
    """Return for how many seconds each thread was ready, but not running."""
    waits: dict[int, float] = {}
    for thread in [path for pid in processes for path in Path(f"/proc/{pid}/task").glob("*")]:
        with suppress(OSError):  # it has ended
            waits[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) * 1e-9
            waits |= _waits(map(int, (thread / "children").read_text().split()))
    return waits
