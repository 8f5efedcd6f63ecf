"""What the reuse of handles adds to the required order, and to the critical path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.dependencies.graph import TaskGraph
from starpullm.checks.dependencies.required_order import TaskFlow, graph_of, task_flow
from starpullm.checks.dependencies.wording import (
    MAX_LISTED,
    Dependency,
    named_dependencies,
    named_dependency,
    path_text,
)
from starpullm.checks.result import CheckResult, Outcome
from starpullm.errors import InvalidArgumentError
from starpullm.trace import AccessMode, Trace

__all__ = ["ReuseResult", "ReusedHandle", "check_reuse", "typical_durations"]


@dataclass(frozen=True, slots=True)
class ReusedHandle:
    """The edges that the reuse of one handle adds; how many of them no path without reuse implies, and one of these."""

    handle: str
    num_added: int
    num_not_implied: int
    example: Dependency


@dataclass(frozen=True, kw_only=True)
class ReuseResult(CheckResult):
    """What the reuse of handles adds to the order and to the critical path.

    ``measured`` and ``limit`` are the growth of the critical path: (with reuse − without reuse) ÷ without reuse. Times
    are in seconds. ``handles`` are those with added edges that aren't implied, the one with most of them first.
    ``on_critical_path`` are the added edges on the critical path with reuse; if that path grows, they are the reason.
    ``implied_example`` is an added edge that is implied, and ``implied_path`` the path that implies it.
    """

    fresh: str
    num_tasks: int
    num_edges: int
    num_added: int
    num_not_implied: int
    critical_path: float
    critical_path_without_reuse: float
    handles: tuple[ReusedHandle, ...]
    on_critical_path: tuple[Dependency, ...]
    implied_example: Dependency | None
    implied_path: tuple[Dependency, ...]

    def detail_lines(self) -> Iterator[str]:
        """Yield the findings."""
        yield f"critical path: {self.critical_path:.6f} s, without reuse {self.critical_path_without_reuse:.6f} s"
        yield from (f"on the critical path: {edge}" for edge in self.on_critical_path)
        # One line for all sub-batches and layers of a tensor.
        by_tensor: dict[str, list[ReusedHandle]] = {}
        for entry in self.handles:
            by_tensor.setdefault(re.split(r"[\[#@]", entry.handle, maxsplit=1)[0], []).append(entry)
        for tensor, entries in by_tensor.items():
            not_implied = sum(entry.num_not_implied for entry in entries)
            yield f"not implied: {not_implied} edges of {tensor}, for example {entries[0].example}"
        if self.implied_example:
            yield f"implied: {self.implied_example}, by {path_text(self.implied_path)}"


def check_reuse(
    trace: Trace,
    *,
    fresh: Literal["step", "write"] = "step",
    updates_in_place: bool = True,
    durations: NDArray[np.int64] | None = None,
    limit: float = 0.0,
) -> ReuseResult:
    """Compare the task flow with the same flow in which written data get fresh handles, so that nothing is reused.

    Passed: reuse makes the critical path longer by at most the limit. The critical path is the time that the graph
    needs with any number of workers; with few workers, other work hides a part of the waiting.

    Parameters
    ----------
    trace
        The recorded tasks.
    fresh
        ``"step"``: the first ``WRITE`` of a handle in each step gets a fresh handle, so that only reuse across steps is
        examined. ``"write"``: every ``WRITE`` does.
    updates_in_place
        True: a ``READ_WRITE`` keeps its handle, and waits for those that read the old value in both flows. False: it
        gets a fresh handle by the same rule as a ``WRITE``. Contributions (``REDUX``) always keep their handle.
    durations
        Nanoseconds per task; None: as measured. ``typical_durations`` vary less.
    limit
        The allowed growth of the critical path, as a fraction.

    Raises
    ------
    InvalidArgumentError
        If there isn't one duration per task.
    """
    flow = task_flow(trace.tasks, trace.accesses)
    num_tasks = len(flow)
    times = _durations(trace) if durations is None else np.asarray(durations, np.int64)
    if times.shape != (num_tasks,):
        raise InvalidArgumentError(f"durations: found shape {times.shape}, expected ({num_tasks},)")
    reused = graph_of(flow)
    renamed = _without_reuse(flow, trace.tasks["step"].tolist(), fresh == "step", updates_in_place)
    is_added = ~np.isin(reused.before * num_tasks + reused.after, renamed.before * num_tasks + renamed.after)
    added = reused.with_edges(is_added)
    implied = renamed.implies(added.before, added.after)
    without, _ = renamed.critical_path(times)
    length, path = reused.critical_path(times)
    growth = (length - without) / without if without else 0.0

    links = set(pairwise(path))
    on_path = [edge for edge in map(added.edge, range(added.num_edges)) if (edge.before, edge.after) in links]
    example = added.edge(int(np.flatnonzero(implied)[0])) if implied.any() else None
    num_added, num_not_implied = _num_pairs(added), _num_pairs(added.with_edges(~implied))
    finding = _why_inconclusive(durations is not None or np.all(trace.tasks["worker"] >= 0), num_added, without)
    if finding:
        outcome = Outcome.INCONCLUSIVE
    else:
        outcome = Outcome.PASSED if growth <= limit else Outcome.FAILED
        finding = f"{num_added} edges added, {num_not_implied} not implied; the critical path grows by {growth:.3%}"
        finding += f", expected at most {limit:.3%}"
    return ReuseResult(
        name="handle reuse",
        outcome=outcome,
        finding=finding,
        measured=growth,
        limit=limit,
        fresh=fresh,
        num_tasks=num_tasks,
        num_edges=reused.num_edges,
        num_added=num_added,
        num_not_implied=num_not_implied,
        critical_path=length * 1e-9,
        critical_path_without_reuse=without * 1e-9,
        handles=tuple(_reused_handles(trace, added, implied)),
        on_critical_path=named_dependencies(trace, on_path[:MAX_LISTED]),
        implied_example=named_dependency(trace, example) if example else None,
        implied_path=named_dependencies(trace, renamed.shortest_path(example.before, example.after) if example else ()),
    )


def _why_inconclusive(has_durations: bool | np.bool_, num_added: int, critical_path: int) -> str:
    if not has_durations:
        return "some tasks have no duration: they haven't run, or ran on another rank"
    if num_added == 0:
        return "no handle is reused, so nothing was shown"
    return "no task took any time" if critical_path == 0 else ""


def typical_durations(trace: Trace) -> NDArray[np.int64]:
    """Return for each task the median time, in nanoseconds, of the tasks with the same operation and handle sizes."""
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)
    sizes_of = sizes[trace.accesses["handle"]].tolist()
    alike: dict[tuple[int, ...], list[int]] = {}
    columns = (trace.tasks[name].tolist() for name in ("operation", "first_access", "num_accesses"))
    for index, (operation, start, count) in enumerate(zip(*columns, strict=True)):
        alike.setdefault((operation, *sizes_of[start : start + count]), []).append(index)
    measured = _durations(trace)
    durations = np.zeros_like(measured)
    for members in alike.values():
        durations[members] = int(np.median(measured[members]))
    return durations


def _durations(trace: Trace) -> NDArray[np.int64]:
    durations: NDArray[np.int64] = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    return durations


def _without_reuse(flow: TaskFlow, steps: Sequence[int], across_steps: bool, updates_in_place: bool) -> TaskGraph:
    """Return the order of the flow with fresh handles, its edges labelled with the handles that these stand for.

    With ``across_steps`` only the first write of a handle in a step gets a fresh one.
    """
    originals: list[int] = []  # for each handle of the new flow the one that it stands for
    current: dict[int, int] = {}  # for each handle the one that stands for it
    renewed: dict[int, int] = {}  # for each handle the step in which it last got a fresh one

    def fresh(handle: int) -> int:
        originals.append(handle)
        current[handle] = len(originals) - 1
        return current[handle]

    renamed = []
    for accesses, step in zip(flow, steps, strict=True):
        entries = []
        for handle, mode in accesses:
            version = current[handle] if handle in current else fresh(handle)
            updates = mode == AccessMode.WRITE or (mode == AccessMode.READ_WRITE and not updates_in_place)
            if not updates or (across_steps and renewed.get(handle) == step):
                entries.append((version, mode))
                continue
            if mode == AccessMode.READ_WRITE:
                entries.append((version, int(AccessMode.READ)))
            renewed[handle] = step
            entries.append((fresh(handle), int(AccessMode.WRITE)))
        renamed.append(entries)
    return graph_of(renamed).with_handles(originals)


def _num_pairs(graph: TaskGraph) -> int:
    """Return how many pairs of tasks the edges join."""
    return sum(map(len, graph.predecessors))


def _reused_handles(trace: Trace, added: TaskGraph, implied: NDArray[np.bool_]) -> Iterator[ReusedHandle]:
    """Yield the handles with added edges that aren't implied, the one with most of them first."""
    num_added = np.bincount(added.handle, minlength=len(trace.handles))
    num_not_implied = np.bincount(added.handle[~implied], minlength=len(trace.handles))
    for handle in np.argsort(-num_not_implied, kind="stable").tolist():
        if num_not_implied[handle] == 0:
            return
        example = added.edge(int(np.flatnonzero(~implied & (added.handle == handle))[0]))
        name = trace.handles[handle].name
        yield ReusedHandle(name, int(num_added[handle]), int(num_not_implied[handle]), named_dependency(trace, example))
