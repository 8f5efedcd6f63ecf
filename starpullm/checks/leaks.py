"""What repetitions allocate is freed again: allocations are counted exactly, by the place of the call.

The size of a process, or what the C library says is in use, would not do: the C library keeps freed memory in a cache
of each thread and counts it as used, which looks like a leak of some hundred bytes a step for some hundred steps.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starpullm.binding import allocations
from starpullm.binding.allocations import Site
from starpullm.binding.library import find_library, open_library
from starpullm.checks.result import MAX_LISTED, Finding
from starpullm.checks.source_line import source_line

KEPT_PER_THREAD = 1
"""Allocations that a place in the library may leave for each thread: a thread renews its scratch memory when it needs
more, which may be late."""

OBJECTS_KEPT = 3
"""Fewer objects of Python than this may be left by a repetition: a call through ctypes leaves one now and then (up to
two for each trainer were measured). A loss that is kept has more."""

OBJECTS_KEPT_EARLY = 16
"""The same of an operation that is repeated a few times only: Python's own tables are still growing (up to five objects
a repetition were measured). A trainer that is kept has hundreds."""

KEPT_AFTER_RUNTIMES = 1
"""Allocations that the library keeps when a runtime has been closed: its copy of the environment."""

KEPT_BY_STARPU = ("starpu_task_prio_list_add", "_starpu_mpi_early_request_enqueue", "_starpu_mpi_early_data_add")
"""Functions of StarPU whose memory grows: 48 bytes a runtime with workers of several threads, and an entry a tag."""

FREEING_SECONDS = 2.0
"""How long to wait for what a worker frees after the end of its last task."""


def find_growth(
    repeated: str,
    repeat: Callable[[int], None],
    *,
    warm_up: int,
    repetitions: int,
    renewals: int,
    objects_kept: int = OBJECTS_KEPT,
) -> dict[str, Any]:
    """Compare what repetitions allocate with what of it has been freed after some more repetitions.

    What is returned are arguments of ``Check.result``. They count the library's allocations; findings are the library's
    leaks, then those of other modules, then those of other resources.

    The process must have preloaded the library of ``binding.allocations``. A leak is:

    - a place in the library under test that leaves more than ``KEPT_PER_THREAD`` allocations of a thread;
    - a place in another module, such as StarPU, that leaves as many allocations as there are repetitions, or more: less
      is what a pool keeps when more of a kind was in use at a time than ever before;
    - in both halves of the repetitions, as many file descriptors or threads as there are repetitions, or more, or
      ``objects_kept`` times as many objects of Python.

    ``repeat`` makes a number of repetitions, and waits for them. In ``warm_up`` repetitions everything is allocated
    that is allocated once. The allocations of an even number of ``repetitions`` are counted. In so many ``renewals``
    after them everything is renewed that lasts longer than one repetition.
    """
    allocations.start()
    _resources()  # Python keeps something of the first call
    repeat(warm_up)
    resources = [_resources()]
    allocations.start()
    for _ in range(2):
        repeat(repetitions // 2)
        resources.append(_resources())
    allocations.stop()
    repeat(renewals)
    own, deadline = str(find_library()), time.monotonic() + FREEING_SECONDS
    while leaking_places(sites := allocations.sites(), own, repetitions) and time.monotonic() < deadline:
        time.sleep(0.01)
    leaks = []
    for place in leaking_places(sites, own, repetitions):
        left, of_each = sum(site.live for site in place), sum(site.live_bytes for site in place) / repetitions
        size = f"{of_each:.4g} bytes a repetition, {left} left of {repetitions} repetitions"
        where = allocated_at(place[0])
        if not any(name in where for name in KEPT_BY_STARPU):
            leaks.append(f"{where}: {size}")
    leaks += growing_resources(resources, repetitions, objects_kept)
    made = sum(site.made for site in sites if site.module == own)
    return {"compared": made, "findings": [Finding(leak) for leak in leaks], "note": f"{repetitions} {repeated}"}


def leaking_places(sites: Sequence[Site], own: str, repetitions: int) -> list[tuple[Site, ...]]:
    """Return the sites of the places that leak, by place: those of the module ``own`` first, then by bytes."""
    places: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for site in sites:
        places[site.module, site.offset].append(site)
    leaking = [
        tuple(of_place)
        for (module, _), of_place in places.items()
        if (
            max(site.live for site in of_place) > KEPT_PER_THREAD
            if module == own
            else sum(site.live for site in of_place) >= repetitions
        )
    ]
    return sorted(
        leaking, key=lambda sites: (sites[0].module != own, -sum(site.live_bytes for site in sites), sites[0].offset)
    )


def allocated_at(site: Site) -> str:
    """Return module and function; one that isn't exported is known if the module has symbols and addr2line is there."""
    function, line = source_line(site.module, site.offset)
    function = f"{function} ({line})" if line else function or site.function or f"{site.offset:#x}"
    return f"{Path(site.module).name or 'unknown module'}, {function}"


def left_allocations(stays: int = 0) -> str:
    """Return where the library has made allocations that are left when workers have had time to free theirs."""
    own, deadline = str(find_library()), time.monotonic() + FREEING_SECONDS
    while True:
        left = [site for site in allocations.sites() if site.module == own and site.live]
        number = sum(site.live for site in left)
        if number <= stays:
            return ""
        if time.monotonic() > deadline:
            where = "; ".join(f"{allocated_at(site)}: {site.live_bytes} bytes" for site in left[:MAX_LISTED])
            return f"left {number} allocations: {where}"
        time.sleep(0.001)


def bytes_on_node(node: int = 0, most: int = 0) -> int:
    """Return the bytes of copies and moving data on a node of StarPU (0: memory), after some time to free more."""
    used = open_library().starpu_memory_get_used
    used.restype = ctypes.c_size_t
    deadline = time.monotonic() + FREEING_SECONDS
    while (found := int(used(node))) > most and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


_OBJECTS = "objects of Python"


def _resources() -> dict[str, int]:
    gc.collect()
    return {
        _OBJECTS: sys.getallocatedblocks(),
        "file descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208  # fewer objects of Python than pathlib
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
    }


def growing_resources(resources: Sequence[dict[str, int]], repetitions: int, objects_kept: int) -> Iterator[str]:
    """Yield the resources that have grown in both halves; they were counted before, between and after these."""
    first, middle, last = resources
    for resource in first:
        allowed = repetitions // 2 * (objects_kept if resource == _OBJECTS else 1)
        if min(middle[resource] - first[resource], last[resource] - middle[resource]) >= allowed:
            yield f"{resource}: {last[resource] - first[resource]} left of {repetitions} repetitions"
