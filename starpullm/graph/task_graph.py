"""A graph of tasks in the order of submission: its paths, the smallest graph with the same paths, its critical path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK = 4096
"""Ancestors are kept as bit sets over this many tasks at a time, so that memory is linear in the number of tasks."""


class DependencyKind(Enum):
    """Why one task has to wait for another."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_READ = "write after read"
    WRITE_AFTER_WRITE = "write after write"


_KINDS = tuple(DependencyKind)


class Edge(NamedTuple):
    """Two tasks of which the second waits for the first, and the handle that is the reason; all by number."""

    before: int
    after: int
    handle: int
    kind: DependencyKind


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks 0 to ``num_tasks - 1``, and edges from a lower to a higher number, sorted by the higher number.

    The edges into task b are the entries ``first[b]`` to ``first[b + 1] - 1`` of ``before``, ``handle`` and ``kind``,
    which is an index into ``DependencyKind``. Two tasks can have several edges, one for each handle.
    """

    first: NDArray[np.int64]
    before: NDArray[np.int64]
    handle: NDArray[np.int64]
    kind: NDArray[np.int8]

    @property
    def num_tasks(self) -> int:
        """The number of tasks."""
        return len(self.first) - 1

    @property
    def num_edges(self) -> int:
        """The number of edges; two tasks have one for each handle."""
        return len(self.before)

    @cached_property
    def after(self) -> NDArray[np.int64]:
        """The later task of each edge."""
        return np.repeat(np.arange(self.num_tasks), np.diff(self.first))

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """The tasks with an edge to each task, without duplicates, ascending."""
        before = self.before.tolist()
        return [sorted(set(before[start:end])) for start, end in pairwise(self.first.tolist())]

    def edge(self, index: int) -> Edge:
        """Return one edge."""
        before, after, handle = (int(numbers[index]) for numbers in (self.before, self.after, self.handle))
        return Edge(before, after, handle, _KINDS[int(self.kind[index])])

    def with_edges(self, edges: NDArray[np.bool_]) -> TaskGraph:
        """Return the graph with these edges only."""
        first = np.concatenate([[0], np.cumsum(np.bincount(self.after[edges], minlength=self.num_tasks))])
        return TaskGraph(first, self.before[edges], self.handle[edges], self.kind[edges])

    def implies(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each pair of tasks whether the graph has a path, of one or more edges, from one to the other."""
        implied = np.zeros(len(before), bool)
        for base, pairs, ancestors in self._ancestors_of_pairs(before, after):
            for pair, earlier, later in zip(pairs.tolist(), before[pairs].tolist(), after[pairs].tolist(), strict=True):
                implied[pair] = later > earlier and ancestors[later - base] >> (earlier - base) & 1
        return implied

    def reduced(self) -> TaskGraph:
        """Return the smallest graph with the same paths: without the edges that a longer path makes unnecessary."""
        needed = np.ones(self.num_edges, bool)
        for base, edges, ancestors in self._ancestors_of_pairs(self.before, self.after):
            indirect = [0] * len(ancestors)
            for number in range(len(ancestors)):
                for earlier in self.predecessors[base + number]:
                    if earlier >= base:
                        indirect[number] |= ancestors[earlier - base]
            pairs = zip(edges.tolist(), self.before[edges].tolist(), self.after[edges].tolist(), strict=True)
            for edge, earlier, later in pairs:
                needed[edge] = not indirect[later - base] >> (earlier - base) & 1
        return self.with_edges(needed)

    def _ancestors_of_pairs(
        self, before: NDArray[np.int64], after: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], list[int]]]:
        """Yield pairs of tasks, block by block: the block's first task, the pairs' indices, and the ancestors.

        A pair belongs to the block of its earlier task. Bit i of ``ancestors[n]`` is set if task ``base + i`` is in the
        block and an ancestor of task ``base + n``.
        """
        for base in range(0, self.num_tasks, _BLOCK):
            pairs = np.flatnonzero((before >= base) & (before < base + _BLOCK))
            if not len(pairs):
                continue
            ancestors: list[int] = []
            for task in range(base, int(after[pairs].max()) + 1):
                bits = 0
                for earlier in self.predecessors[task]:
                    if earlier >= base:
                        bits |= ancestors[earlier - base]
                        if earlier < base + _BLOCK:
                            bits |= 1 << (earlier - base)
                ancestors.append(bits)
            yield base, pairs, ancestors

    def critical_path(self, durations: NDArray[np.int64]) -> tuple[int, list[int]]:
        """Return the length of the longest path, weighted by the tasks' durations, and the tasks on it.

        No number of workers can run the graph in less time.
        """
        ends: list[int] = []
        through: list[int] = []
        for duration, predecessors in zip(durations.tolist(), self.predecessors, strict=True):
            latest = max(predecessors, key=ends.__getitem__, default=-1)
            through.append(latest)
            ends.append(duration + (ends[latest] if latest >= 0 else 0))
        task = max(range(len(ends)), key=ends.__getitem__, default=-1)
        length = ends[task] if task >= 0 else 0
        path = []
        while task >= 0:
            path.append(task)
            task = through[task]
        return length, path[::-1]
