"""Where in the source an instruction is, as the debugging information of its module says."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

_LOOKUP_SECONDS = 20.0
_NOT_FOR_IT = ("LD_PRELOAD", "DEBUGINFOD_URLS")
"""Variables that addr2line doesn't get: downloading symbols takes too long."""


@cache
def source_line(module: str, address: int) -> tuple[str, str]:
    """Return the function at an address of a module's file, and FILE:LINE; each is empty if it isn't known."""
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_IT}
    command = ["addr2line", "-f", "-C", "-e", module, hex(address)]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=_LOOKUP_SECONDS, check=True, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return "", ""
    function, line = run.stdout.splitlines()[:2]
    path, _, number = line.partition(" (")[0].rpartition(":")
    is_known = path.strip("?") and number.isdigit() and int(number)
    return function.strip("?"), f"{Path(path).name}:{number}" if is_known else ""
