"""How long threads have waited for a processor, which is no fault of theirs: a loaded machine isn't a hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path


def processor_waits(processes: Iterable[int]) -> dict[int, float]:
    """Return the seconds for which each thread of processes, and of what they have started, was ready but not running.

    Threads by their numbers. It is empty where the kernel doesn't say (CONFIG_SCHED_INFO, CONFIG_PROC_CHILDREN).
    """
    waits: dict[int, float] = {}
    for thread in [path for pid in processes for path in Path(f"/proc/{pid}/task").glob("*")]:
        with suppress(OSError):  # it has ended
            waits[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) * 1e-9
            waits |= processor_waits(map(int, (thread / "children").read_text().split()))
    return waits


def longest_wait(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the longest of the threads' waits between two results of `processor_waits`."""
    return max((seconds - before.get(thread, 0.0) for thread, seconds in after.items()), default=0.0)
