"""Runs the work on paper: a worker takes the next ready task, and a link carries one message at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.graph.work import Work
from starpullm.options import index_of_choice

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
        """Read ``10us,10GB/s``; `InvalidArgumentError` is raised unless both are above 0."""
        number = r"([0-9]+(?:\.[0-9]+)?)"
        match = re.fullmatch(f"{number}({'|'.join(_TIME)}),{number}({'|'.join(_SPEED)})", text)
        if match is None or float(match[3]) == 0:
            raise InvalidArgumentError(
                f'network: found "{text}", expected a latency and a bandwidth above 0, for example 10us,10GB/s'
            )
        return cls(float(match[1]) * _TIME[match[2]], float(match[3]) * _SPEED[match[4]])

    def __str__(self) -> str:
        return f"{self.latency * 1e6:g} us, {self.bandwidth / 1e9:g} GB/s"


SCHEDULERS = ("lws", "prio", "eager")

FREE = Network(0.0, float("inf"))
"""Messages take no time."""


@dataclass(frozen=True)
class PaperSchedule:
    """When each node of the work starts and ends, in nanoseconds, and on which worker; -1 for messages.

    ``ready`` is when a node has all that it needs but a worker or a link. ``before`` is the node that it waited for
    last: one that it depends on, or else the last task of its worker or message of its link; -1: none.
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
    scheduler: str,
    network: Network = FREE,
) -> PaperSchedule:
    """Return the schedule of greedy list scheduling with `workers` workers on each rank, in outline as StarPU's.

    No worker is idle while a task of its rank is ready. With ``eager`` it takes the one that was ready first, with
    ``prio`` one of the highest priority. With ``lws`` a task that becomes ready goes to the worker that has made it so;
    a worker takes its own task of the highest priority, or else that of its next neighbour that has some. A message
    leaves when its value is there and both links are free.

    Durations, in nanoseconds, and priorities are those of each node; durations of messages are added to what the
    network takes. `InvalidArgumentError` is raised for a scheduler that isn't one of `SCHEDULERS`.
    """
    index_of_choice("scheduler", scheduler, SCHEDULERS)
    if scheduler == "eager":
        priorities = np.zeros_like(priorities)
    return _PaperRun(
        work, durations, priorities, workers, network, queues=workers if scheduler == "lws" else 1
    ).result()


class _PaperRun:
    """The state of the run: what is ready, who is idle, and the events to come."""

    def __init__(
        self,
        work: Work,
        durations: NDArray[np.int64],
        priorities: NDArray[np.int64],
        workers: int,
        network: Network,
        queues: int,
    ) -> None:
        count, ranks = len(work.task), int(np.maximum(work.rank, work.source).max(initial=0)) + 1
        self._network = network
        self._source, self._rank = work.source.tolist(), work.rank.tolist()
        self._bytes, self._durations = work.bytes.tolist(), durations.tolist()
        self._priorities = priorities.tolist()
        self._first, self._successors, self._missing = _successors(work, count)
        self._ready, self._start, self._end, self._worker, self._before = ([0] * count for _ in range(5))
        self._queues: list[list[list[tuple[int, int, int]]]] = [[[] for _ in range(queues)] for _ in range(ranks)]
        self._waiting = [0] * ranks  # tasks in all queues of a rank
        self._became_ready = 0  # tasks so far
        self._idle = [set(range(workers)) for _ in range(ranks)]
        self._last = [[-1] * workers for _ in range(ranks)]  # the last task of each worker
        self._out, self._in = [(0, -1)] * ranks, [(0, -1)] * ranks  # links: free from when, and the last message
        self._events: list[tuple[int, int]] = []

    def result(self) -> PaperSchedule:
        for node, missing in enumerate(self._missing.copy()):
            if not missing:
                self._release(node, 0, -1)
        for rank in range(len(self._queues)):
            self._start_tasks(rank, 0)
        while self._events:
            now = self._events[0][0]
            ranks = set()
            while self._events and self._events[0][0] == now:
                ranks |= self._finish(heappop(self._events)[1], now)
            for rank in sorted(ranks):
                self._start_tasks(rank, now)
        columns = (self._ready, self._start, self._end, self._worker, self._before)
        return PaperSchedule(*(np.array(column, np.int64) for column in columns))

    def _finish(self, node: int, now: int) -> set[int]:
        """Let the worker go, and what waits for the node; return the ranks where a task may start."""
        ranks = {self._rank[node]}
        if self._source[node] < 0:
            self._idle[self._rank[node]].add(self._worker[node])
        for successor in self._successors[self._first[node] : self._first[node + 1]]:
            self._missing[successor] -= 1
            if not self._missing[successor]:
                self._release(successor, now, node)
                ranks.add(self._rank[successor])
        return ranks

    def _release(self, node: int, now: int, before: int) -> None:
        """Put a task into a queue, or send a message: all that it waits for is there."""
        self._ready[node], self._before[node] = now, before
        if self._source[node] >= 0:
            self._send(node, now)
            return
        rank = self._rank[node]
        queues = self._queues[rank]
        own = before >= 0 and self._source[before] < 0 and self._rank[before] == rank
        number = self._worker[before] if own else self._became_ready
        heappush(queues[number % len(queues)], (-self._priorities[node], self._became_ready, node))
        self._became_ready += 1
        self._waiting[rank] += 1

    def _send(self, node: int, now: int) -> None:
        source, destination = self._source[node], self._rank[node]
        for free_at, last in (self._out[source], self._in[destination]):
            if free_at > now:
                now, self._before[node] = free_at, last
        occupied = now + round(self._bytes[node] / self._network.bandwidth * 1e9)
        self._out[source] = self._in[destination] = (occupied, node)
        self._begin(node, -1, now, occupied + round(self._network.latency * 1e9) + self._durations[node])

    def _start_tasks(self, rank: int, now: int) -> None:
        queues, idle = self._queues[rank], self._idle[rank]
        while self._waiting[rank] and idle:
            for worker in sorted(idle)[: self._waiting[rank]]:
                queue = next(queue for step in range(len(queues)) if (queue := queues[(worker + step) % len(queues)]))
                node = heappop(queue)[2]
                self._waiting[rank] -= 1
                idle.remove(worker)
                if self._ready[node] < now:
                    self._before[node] = self._last[rank][worker]
                self._last[rank][worker] = node
                self._begin(node, worker, now, now + self._durations[node])

    def _begin(self, node: int, worker: int, start: int, end: int) -> None:
        self._start[node], self._end[node], self._worker[node] = start, end, worker
        heappush(self._events, (end, node))


def _successors(work: Work, count: int) -> tuple[list[int], list[int], list[int]]:
    """Return where each node's successors begin, the successors, and the number of predecessors of each node."""
    pairs = np.unique(work.order.before * count + work.order.after)
    before, after = np.divmod(pairs, max(count, 1))
    first = np.concatenate([[0], np.cumsum(np.bincount(before, minlength=count))])
    return first.tolist(), after.tolist(), np.bincount(after, minlength=count).tolist()
