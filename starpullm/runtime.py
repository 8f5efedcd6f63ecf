"""The runtime: StarPU started with a partition and a scheduler, one at a time in a process.

Users create one and give it to ``Trainer``; the command line does the same.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from starpullm import _native
from starpullm.errors import InvalidArgumentError
from starpullm.resource import Resource

__all__ = ["DEFAULT_SCHEDULER", "Partition", "Runtime", "schedulers"]

DEFAULT_SCHEDULER = "lws"


class Partition(NamedTuple):
    """``WxT``: W workers of T threads each."""

    workers: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Read ``WxT``, for example ``2x1``.

        Raises
        ------
        InvalidArgumentError
            If the text isn't two positive numbers with an x between them.
        """
        match = re.fullmatch(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", text)
        if not match:
            raise InvalidArgumentError(f'partition: found "{text}", expected WxT, for example 2x1')
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


def schedulers() -> list[str]:
    """Return the names of StarPU's schedulers."""
    return list(_native.names("scheduler_name"))


class Runtime(Resource):
    """StarPU, running; a context manager.

    Parameters
    ----------
    partition
        ``WxT``: W workers of T threads. This version has workers of one thread.
    scheduler
        One of ``schedulers()``.

    Raises
    ------
    InvalidArgumentError
        If the partition can't be had on this machine, or StarPU doesn't know the scheduler.
    StateError
        If a runtime is running in this process already.
    RuntimeFailureError
        If StarPU doesn't start.
    """

    def __init__(self, partition: str | Partition = "1x1", scheduler: str = DEFAULT_SCHEDULER) -> None:
        self.partition = Partition.parse(partition) if isinstance(partition, str) else partition
        self.scheduler = scheduler
        self._handle = _native.RuntimeHandle()
        options = _native.RuntimeOptions(
            workers=_native.integer("partition, workers", self.partition.workers, 32),
            threads_per_worker=_native.integer("partition, threads per worker", self.partition.threads, 32),
            scheduler=_native.c_string("scheduler", scheduler),
        )
        _native.call("runtime_create", options, self._handle.address)

    def _destroy(self) -> None:
        _native.call("runtime_destroy", self._handle)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "running"
        return f"<Runtime {self.partition} {self.scheduler}, {state}>"
