"""The name of the machine that a process runs on."""

from __future__ import annotations

import os
import socket


def host_name() -> str:
    """Return the name by which Slurm knows this machine, or else its own."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
