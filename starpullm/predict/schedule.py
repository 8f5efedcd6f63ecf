"""Runs the work on paper: workers take the ready tasks of the highest priority, links carry one message at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.predict.graph import Work

_TIME = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_SPEED = {"MB/s": 1e6, "GB/s": 1e9}


class Network(NamedTuple):
    """What a message costs: the latency in seconds, and its bytes by the bytes per second of a rank's link.

    A rank sends one message at a time and receives one at a time.
    """

    latency: float
    bandwidth: float

    @classmethod
    def parse(cls, text: str) -> Network:
        """Read ``10us,10GB/s``.

        Raises
        ------
        InvalidArgumentError
            If the text isn't a time and a speed above 0.
        """
        number = r"([0-9]+(?:\.[0-9]+)?)"
        match = re.fullmatch(f"{number}({'|'.join(_TIME)}),{number}({'|'.join(_SPEED)})", text)
        if match is None or float(match[3]) == 0:
            raise InvalidArgumentError(
                f'network: found "{text}", expected a latency and a bandwidth above 0, for example 10us,10GB/s'
            )
        return cls(float(match[1]) * _TIME[match[2]], float(match[3]) * _SPEED[match[4]])

    def __str__(self) -> str:
        return f"{self.latency * 1e6:g} us, {self.bandwidth / 1e9:g} GB/s"


FREE = Network(0.0, float("inf"))
"""Messages take no time."""


@dataclass(frozen=True)
class Schedule:
    """When each node of the work starts and ends, in nanoseconds, and on which worker; -1 for messages.

    ``ready`` is when it has all that it waits for. ``before`` is the node that the start waited for last, a predecessor
    or what occupied the worker or the link; -1: none.
    """

    ready: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    worker: NDArray[np.int64]
    before: NDArray[np.int64]

    @property
    def makespan(self) -> int:
        """The end of the last node, in nanoseconds."""
        return int(self.end.max(initial=0))


def run(
    work: Work,
    durations: NDArray[np.int64],
    priorities: NDArray[np.int64],
    *,
    workers: int,
    network: Network = FREE,
) -> Schedule:
    """Return the schedule of greedy list scheduling with `workers` workers on each rank.

    A worker that is free takes, of the ready tasks of its rank, one of the highest priority, of these the one that was
    submitted first. A message leaves when its value is there and both links are free.

    Parameters
    ----------
    durations
        Of each node, in nanoseconds; those of messages are added to what the network takes.
    priorities
        Of each node.
    """
    return _Run(work, durations, priorities, workers, network).result()


class _Run:
    """The state of the run: what is ready, who is free, and the events to come."""

    def __init__(
        self,
        work: Work,
        durations: NDArray[np.int64],
        priorities: NDArray[np.int64],
        workers: int,
        network: Network,
    ) -> None:
        count, ranks = len(work.task), int(work.rank.max(initial=0)) + 1
        self._network = network
        self._source, self._rank = work.source.tolist(), work.rank.tolist()
        self._bytes, self._durations = work.bytes.tolist(), durations.tolist()
        self._priorities = priorities.tolist()
        self._first, self._successors, self._missing = _successors(work, count)
        self._ready_at, self._start, self._end, self._worker, self._before = ([0] * count for _ in range(5))
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        self._free: list[list[tuple[int, int, int]]] = [
            [(0, worker, -1) for worker in range(workers)] for _ in range(ranks)
        ]
        self._out, self._in = [(0, -1)] * ranks, [(0, -1)] * ranks  # free from when, occupied by which node
        self._events: list[tuple[int, int]] = []

    def result(self) -> Schedule:
        for node, missing in enumerate(self._missing):
            if not missing:
                self._becomes_ready(node, 0, -1)
        for rank in range(len(self._waiting)):
            self._start_tasks(rank, 0)
        while self._events:
            now = self._events[0][0]
            touched = set()
            while self._events and self._events[0][0] == now:
                touched |= self._finish(heappop(self._events)[1], now)
            for rank in sorted(touched):
                self._start_tasks(rank, now)
        columns = (self._ready_at, self._start, self._end, self._worker, self._before)
        return Schedule(*(np.array(column, np.int64) for column in columns))

    def _finish(self, node: int, now: int) -> set[int]:
        """Free the worker, release what waits for the node; return the ranks where a task may start."""
        rank = self._rank[node]
        touched = {rank}
        if self._source[node] < 0:
            heappush(self._free[rank], (now, self._worker[node], node))
        for successor in self._successors[self._first[node] : self._first[node + 1]]:
            self._missing[successor] -= 1
            if not self._missing[successor]:
                self._becomes_ready(successor, now, node)
                touched.add(self._rank[successor])
        return touched

    def _becomes_ready(self, node: int, now: int, before: int) -> None:
        self._ready_at[node], self._before[node] = now, before
        if self._source[node] < 0:
            heappush(self._waiting[self._rank[node]], (-self._priorities[node], node))
        else:
            self._send(node, now)

    def _send(self, node: int, now: int) -> None:
        source, destination = self._source[node], self._rank[node]
        for free_at, occupant in (self._out[source], self._in[destination]):
            if free_at > now:
                now, self._before[node] = free_at, occupant
        occupied = now + round(self._bytes[node] / self._network.bandwidth * 1e9)
        self._out[source] = self._in[destination] = (occupied, node)
        self._begin(node, now, occupied + round(self._network.latency * 1e9) + self._durations[node], -1)

    def _start_tasks(self, rank: int, now: int) -> None:
        waiting, free = self._waiting[rank], self._free[rank]
        while waiting and free:
            _, node = heappop(waiting)
            free_at, worker, occupant = heappop(free)
            if self._ready_at[node] < now or free_at > self._ready_at[node]:
                self._before[node] = occupant
            self._begin(node, now, now + self._durations[node], worker)

    def _begin(self, node: int, start: int, end: int, worker: int) -> None:
        self._start[node], self._end[node], self._worker[node] = start, end, worker
        heappush(self._events, (end, node))


def _successors(work: Work, count: int) -> tuple[list[int], list[int], list[int]]:
    """Return where each node's successors begin, the successors, and the number of predecessors of each node."""
    pairs = np.unique(work.order.before * count + work.order.after)
    before, after = np.divmod(pairs, max(count, 1))
    first = np.concatenate([[0], np.cumsum(np.bincount(before, minlength=count))])
    return first.tolist(), after.tolist(), np.bincount(after, minlength=count).tolist()
