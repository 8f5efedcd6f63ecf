"""Ends a run that makes no progress, and says which ranks don't answer any more: their host or the network has failed.

Each rank has a thread that receives messages of the others, whatever its main thread does.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Self

from starpullm.processes import Comm, progress
from starpullm.processes.interrupts import say
from starpullm.processes.mpirun import LAUNCHERS, host_name
from starpullm.processes.ranks import rank_list

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_TURN_SECONDS = 2.0  # for a rank of a lower number to end the job, which only one has to explain
_LAUNCHER_SECONDS = 5.0  # for mpirun to end the job: it waits for an answer of hosts that it can't reach


class ProgressLimit:
    """Ends the run with an exit status, from a thread, if a rank has begun no phase for so many seconds.

    Over ranks (None: one process), all of them enter and leave the context. A rank also ends when its launcher has.
    """

    def __init__(self, seconds: float, comm: Comm | None, status: int) -> None:
        self.seconds, self.status = seconds, status
        self._comm = comm.Dup() if comm else None  # messages of its own
        self._hosts = comm.allgather(host_name()) if comm else []
        self._rank = comm.Get_rank() if comm else 0
        self._parent = os.getppid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="starpullm progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._comm:
            self._comm.Free()

    def _watch(self) -> None:
        seen, idle = 0, 0.0  # by its own pauses: a process that was stopped meanwhile isn't late
        while not self._over.wait(_POLL_SECONDS):
            seen, before = progress.OwnReport.reports, seen
            idle = idle + _POLL_SECONDS if seen == before else 0.0
            self._receive()
            if self._comm and os.getppid() != self._parent:
                return self._end("its launcher has ended")
            if idle >= self.seconds:
                missing = self._missing()
                if seen == progress.OwnReport.reports:
                    return self._end(f"no progress for {self.seconds:g} s (--time-limit)", missing)

    def _receive(self) -> None:
        while self._comm and self._comm.Iprobe():
            self._comm.recv()

    def _missing(self) -> list[int]:
        """Send all other ranks a message, and return those that don't receive it."""
        missing = [rank for rank in range(len(self._hosts)) if rank != self._rank]
        sent = {rank: self._comm.issend(None, rank) for rank in missing if self._comm}
        deadline = time.monotonic() + _ANSWER_SECONDS
        while missing and time.monotonic() < deadline:
            self._receive()
            missing = [rank for rank in missing if not sent[rank].Test()]
            time.sleep(_POLL_SECONDS / 10)
        return missing

    def _end(self, why: str, missing: Sequence[int] = ()) -> None:
        if missing:
            hosts = sorted({self._hosts[rank] for rank in missing})
            why += f", no answer from {rank_list(missing)} on {', '.join(hosts)}"
            self._end_launcher()
        if any(rank not in missing for rank in range(self._rank)):
            time.sleep(_TURN_SECONDS)
        who, what = (f"rank {self._rank}", "job") if self._comm else ("starpullm", "run")
        with suppress(OSError):  # nobody reads it
            say(f"{who}: {why} ({progress.where()}), so the {what} is ended")
        if self._comm:
            self._comm.Abort(self.status)
        os.kill(os.getpid(), signal.SIGTERM)  # for which a command has its own limit

    def _end_launcher(self) -> None:
        """Let another process kill what has started this rank, and all that it has started, unless they end soon."""
        launcher = os.getppid()
        while launcher > 1:
            status = Path(f"/proc/{launcher}/status").read_text("utf-8", "replace")
            name, parent = re.findall(r"^(?:Name|PPid):\t(.*)$", status, re.MULTILINE)
            if name in LAUNCHERS:
                children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text("ascii")
                kill = ["sh", "-c", f"sleep {_LAUNCHER_SECONDS}; kill -KILL {launcher} {children}"]
                Popen(kill, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
                return
            launcher = int(parent)
