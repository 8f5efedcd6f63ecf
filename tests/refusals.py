"""A library that lets StarPU refuse calls of a process that preloads it: see native/tests/preload/refusals.h."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parents[1] / "native" / "tests" / "preload" / "refusals.c"


def compile_refusals(directory: Path) -> Path:
    """Compile the library in a directory."""
    library = directory / "librefusals.so"
    options = "-std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -fPIC -shared".split()
    subprocess.run(["cc", *options, str(_SOURCE), "-o", str(library), "-ldl"], check=True, timeout=60)
    return library


def refuse_call(number: int) -> int:
    """Let StarPU refuse the ``number``-th of the next tasks, messages, reads of a saved state and starts of transfers.

    They are counted from 1; 0: none is refused.

    Return how many more of them would have led to the one that was chosen before; 0: it was refused, or none was.
    """
    return int(ctypes.CDLL(None).starpullm_refusals_call(ctypes.c_long(number)))
