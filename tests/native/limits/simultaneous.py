"""Calls that one thread makes while another one starts or closes the runtime: they wait, and then see what there is.

StarPU starts and ends its own threads meanwhile. So their number says, without a time, that the other thread is inside
the library. Whenever the call comes, its ending must be the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from starpullm.binding import prototypes, structs
from starpullm.checks.place import environment
from starpullm.errors import StateError
from starpullm.runtime import Runtime

from .starts import as_it_is, start_as_is
from .statements import Statements, ending_of, text_of

_CORES = 24
_PARTITION = f"{_CORES}x1"
"""So many threads that starting and ending them takes longer than a call."""


def check_simultaneous_calls(statements: Statements) -> None:
    """Start a runtime while another thread does; then open a session on it and close it while another thread does."""
    runtimes: list[Runtime] = []
    with environment(HWLOC_SYNTHETIC=f"core:{_CORES} pu:1"):
        found = _while_another(lambda: runtimes.append(Runtime(_PARTITION)), start_as_is, threads=1)
        sentence = "a runtime is running already in this process, expected none: close it"
        statements.equal("a runtime that two threads start", text_of(StateError, sentence), found)
        for what in ("session_create", "runtime_destroy"):
            runtime = runtimes.pop() if runtimes else Runtime(_PARTITION)
            handle = as_it_is(runtime)
            session = (handle, structs.new("session_options"), structs.Handle("session").address)
            call = partial(prototypes.call, what, *(session if what == "session_create" else (handle.address,)))
            found = _while_another(runtime.close, call, threads=-1)
            sentence = "the runtime is closed, expected one that is running"
            statements.equal(f"{what} while another thread closes the runtime", text_of(StateError, sentence), found)


def _while_another(first: Callable[[], object], second: Callable[[], object], *, threads: int) -> str:
    """Return how the second call ends that begins when the first one, by another thread, has changed StarPU's threads.

    `threads` is 1 or -1: it has started or ended one of them.
    """
    other = threading.Thread(target=first)
    before = _num_threads()
    other.start()
    while (_num_threads() - before - 1) * threads <= 0 and other.is_alive():
        pass
    ending = ending_of(second)
    other.join()
    while Path(f"/proc/self/task/{other.native_id}").exists():  # join returns before Linux has ended the thread
        pass
    return ending


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
