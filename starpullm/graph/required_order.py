"""The order that declared accesses require; all checks of this package compare with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.graph.task_graph import Edge, TaskGraph
from starpullm.trace import AccessMode, Trace

_READ_AFTER_WRITE, _WRITE_AFTER_READ, _WRITE_AFTER_WRITE = range(3)
_READ, _WRITE, _REDUX = (int(mode) for mode in (AccessMode.READ, AccessMode.WRITE, AccessMode.REDUX))

AccessLists: TypeAlias = Sequence[Sequence[tuple[int, int]]]
"""For each task its handles and access modes, each handle once."""


class _HandleState:
    """The tasks that the next access of a handle may have to wait for."""

    __slots__ = ("before_group", "readers", "writers")

    def __init__(self) -> None:
        self.writers: list[int] = []  # the last writer, or all contributions of the last group
        self.readers: list[int] = []  # since then
        # Writers and readers before a group of contributions; None: the last write wasn't a contribution.
        self.before_group: tuple[list[int], list[int]] | None = None

    def access(self, task: int, mode: int) -> Iterator[tuple[int, int]]:
        """Record an access, and yield the tasks that it waits for, each with the kind of dependency."""
        if mode == _REDUX and self.before_group is not None and not self.readers:
            earlier_writers, earlier_readers = self.before_group
        else:
            earlier_writers, earlier_readers = self.writers, self.readers
        if mode != _WRITE:
            yield from zip(earlier_writers, repeat(_READ_AFTER_WRITE))
        elif not earlier_readers:
            yield from zip(earlier_writers, repeat(_WRITE_AFTER_WRITE))
        if mode == _READ:
            self.readers.append(task)
            return
        yield from zip(earlier_readers, repeat(_WRITE_AFTER_READ))
        if mode != _REDUX:
            self.writers, self.readers, self.before_group = [task], [], None
        elif earlier_writers is self.writers:
            self.writers, self.readers, self.before_group = [task], [], (earlier_writers, earlier_readers)
        else:
            self.writers.append(task)


def task_flow(tasks: NDArray[np.void], accesses: NDArray[np.void]) -> list[list[tuple[int, int]]]:
    """Return the handles and modes of each task; arguments and errors as ``required_edges``."""
    modes = accesses["mode"]
    unknown = np.flatnonzero((modes < AccessMode.READ) | (modes > AccessMode.REDUX))
    if len(unknown):
        raise InvalidArgumentError(
            f"access {unknown[0]}: found mode {modes[unknown[0]]}, expected {int(AccessMode.READ)} to "
            f"{int(AccessMode.REDUX)}"
        )
    pairs = list(zip(accesses["handle"].tolist(), modes.tolist(), strict=True))
    flow = []
    for start, count in zip(tasks["first_access"].tolist(), tasks["num_accesses"].tolist(), strict=True):
        listed = pairs[start : start + count]
        merged = dict(listed)
        if len(merged) < len(listed):
            for handle in merged:
                # Two different modes of one handle are at least a read and a write.
                different = {mode for listed_handle, mode in listed if listed_handle == handle}
                merged[handle] = different.pop() if len(different) == 1 else int(AccessMode.READ_WRITE)
        flow.append(list(merged.items()))
    return flow


def graph_of(flow: AccessLists) -> TaskGraph:
    """Return the required order of a task flow; see ``required_edges``."""
    states: defaultdict[int, _HandleState] = defaultdict(_HandleState)
    first = [0]
    edges: list[tuple[int, int, int]] = []
    for task, accesses in enumerate(flow):
        for handle, mode in accesses:
            edges += [(earlier, handle, kind) for earlier, kind in states[handle].access(task, mode)]
        first.append(len(edges))
    table = np.array(edges, np.int64).reshape(-1, 3)
    return TaskGraph(np.array(first, np.int64), table[:, 0], table[:, 1], table[:, 2].astype(np.int8))


def required_edges(tasks: NDArray[np.void], accesses: NDArray[np.void]) -> TaskGraph:
    """Return the order that the accesses of a ``Trace`` require; an unknown mode is an `InvalidArgumentError`.

    Every pair of tasks that must be ordered is joined by a path. Edges exist only between an access and the last
    accesses that conflict with it, and every read, also of a ``READ_WRITE``, has an edge from the task that wrote the
    value.
    """
    return graph_of(task_flow(tasks, accesses))


def edge_text(trace: Trace, edge: Edge) -> str:
    """Return a task, a later one that has to wait for it, and why."""
    return f"{trace[edge.before]} → {trace[edge.after]}: {edge.kind.value} of {trace.handles[edge.handle].name}"


def path_text(trace: Trace, path: Sequence[Edge]) -> str:
    """Return a path's tasks, with the handles between them."""
    steps = (f" → [{trace.handles[edge.handle].name}] {trace[edge.after]}" for edge in path)
    return f"{trace[path[0].before]}{''.join(steps)}"
