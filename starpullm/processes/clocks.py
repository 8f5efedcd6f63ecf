"""By how much the monotonic clocks of ranks differ, so that times of several machines can be put on one axis.

Each rank answers messages of rank 0 with its time. When a message and its answer have taken d together, the rank's
clock was read at most d/2 away from the middle, on rank 0's clock. The shortest of several exchanges gives the smallest
uncertainty.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.processes import Comm

_EXCHANGES = 30
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")


@dataclass(frozen=True)
class ClockReading:
    """A rank's clock beside that of rank 0, in nanoseconds.

    When the rank's clock showed ``at_ns``, that of rank 0 showed ``at_ns - ahead_ns``, give or take
    ``uncertainty_ns``, which is 0 if the two ranks read the same clock.
    """

    at_ns: int
    ahead_ns: int = 0
    uncertainty_ns: int = 0


def clock_identity() -> str:
    """Return a text that is equal for two processes that read the same monotonic clock: one kernel, one namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts = [_BOOT.read_text("ascii").strip()]
    with suppress(OSError):
        parts.append(str(_TIME_NAMESPACE.readlink()))
    return " ".join(parts)


def read_clock(comm: Comm | None) -> ClockReading:
    """Compare the clocks of all ranks with that of rank 0, and return this rank's; every rank has to call this."""
    if comm is None:
        return ClockReading(time.monotonic_ns())
    identities = comm.allgather(clock_identity())
    reading = ClockReading(time.monotonic_ns())
    for rank, identity in enumerate(identities):
        if identity == identities[0]:
            continue
        if comm.Get_rank() == 0:
            _ask(comm, rank)
        elif comm.Get_rank() == rank:
            reading = _answer(comm)
    return reading


def on_rank_0(times: NDArray[np.int64], first: ClockReading, last: ClockReading) -> NDArray[np.int64]:
    """Return times of a rank's clock on that of rank 0.

    Between the two readings, the difference of the clocks is taken to change evenly.
    """
    if first.ahead_ns == last.ahead_ns or first.at_ns == last.at_ns:
        return times - last.ahead_ns
    drift = (last.ahead_ns - first.ahead_ns) / (last.at_ns - first.at_ns)
    aligned: NDArray[np.int64] = times - first.ahead_ns - np.rint((times - first.at_ns) * drift).astype(np.int64)
    return aligned


def _ask(comm: Comm, rank: int) -> None:
    """Send a rank the times at which each exchange began and ended here, by the clock of rank 0."""
    began_and_ended = np.empty((_EXCHANGES, 2), np.int64)
    message = np.zeros(1, np.int64)
    for exchange in range(_EXCHANGES):
        began_and_ended[exchange, 0] = time.monotonic_ns()
        comm.Send(message, rank)
        comm.Recv(message, rank)
        began_and_ended[exchange, 1] = time.monotonic_ns()
    comm.Send(began_and_ended, rank)


def _answer(comm: Comm) -> ClockReading:
    own = np.empty(_EXCHANGES, np.int64)
    message = np.zeros(1, np.int64)
    for exchange in range(_EXCHANGES):
        comm.Recv(message, 0)
        own[exchange] = time.monotonic_ns()
        comm.Send(message, 0)
    began_and_ended = np.empty((_EXCHANGES, 2), np.int64)
    comm.Recv(began_and_ended, 0)
    durations = began_and_ended[:, 1] - began_and_ended[:, 0]
    shortest = int(durations.argmin())
    half = -(-int(durations[shortest]) // 2)
    return ClockReading(int(own[shortest]), int(own[shortest] - began_and_ended[shortest, 0] - half), half)
