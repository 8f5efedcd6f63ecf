"""What the reuse of handles adds to the required order, and to the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import Case
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.result import MAX_LISTED, Finding, Result
from starpullm.checks.training import trace_steps, traced_trainer
from starpullm.graph.required_order import AccessLists, edge_text, graph_of, task_flow
from starpullm.graph.task_graph import TaskGraph
from starpullm.trace import AccessMode, Trace


@check
class HandleReuse(Check):
    """Compare the critical path with that of the same task flow in which every step has buffers of its own.

    In that flow the first ``WRITE`` of a handle in each step gets a fresh handle. Updates (``READ_WRITE``) and
    contributions (``REDUX``) keep theirs, and wait for those that read the old value in both flows. The critical path
    is the time that the graph needs with any number of workers; with few workers, other work hides a part of the
    waiting. What is measured is its growth: (with reuse − without reuse) ÷ without reuse. One worker is enough: the
    graph is the same on all placements, and no other task disturbs the durations.
    """

    family, unit = "dependencies", "added edges"
    claim = "reused buffers don't lengthen the critical path of the recorded run"
    fault = "reused buffers lengthen the critical path"
    cannot_see = "other durations, in which another path may be critical"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1))

    def run(self, context: CheckContext, case: Case) -> Result:
        """Trace some steps."""
        with traced_trainer(context, case) as trainer:
            trace = trace_steps(trainer, case.seed)
        return self.judge(trace, typical_durations(trace))

    def judge(self, trace: Trace, durations: NDArray[np.int64]) -> Result:
        """Return the verdict; ``durations`` are nanoseconds for each task, such as ``typical_durations``."""
        flow = task_flow(trace.tasks, trace.accesses)
        num_tasks = len(flow)
        reused = graph_of(flow)
        renamed = _without_reuse(flow, trace.tasks["step"].tolist())
        is_added = ~np.isin(reused.before * num_tasks + reused.after, renamed.before * num_tasks + renamed.after)
        added = reused.with_edges(is_added)
        without, _ = renamed.critical_path(durations)
        length, path = reused.critical_path(durations)
        growth = (length - without) / without if without else 0.0
        num_added = sum(map(len, added.predecessors))  # pairs of tasks
        links = set(pairwise(path))
        on_path = [edge for edge in map(added.edge, range(added.num_edges)) if (edge.before, edge.after) in links]
        findings = [Finding(f"on the critical path: {edge_text(trace, edge)}") for edge in on_path[:MAX_LISTED]]
        return self.result(
            compared=num_added,
            findings=findings if growth > 0 else (),
            measured=growth,
            undecided="no task took any time" if num_added and not without else "",
            note=f"critical path {length * 1e-9:.6f} s, without reuse {without * 1e-9:.6f} s",
            critical_path=length * 1e-9,
            critical_path_without_reuse=without * 1e-9,
        )


def typical_durations(trace: Trace) -> NDArray[np.int64]:
    """Return for each task the shortest time, in nanoseconds, of the tasks with the same operation and handle sizes.

    The shortest, because other programs on the machine only make a task longer, and by chance some kinds more than
    others: then the critical path goes through tasks that it doesn't go through otherwise.
    """
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)
    sizes_of = sizes[trace.accesses["handle"]].tolist()
    alike: dict[tuple[int, ...], list[int]] = {}
    columns = (trace.tasks[name].tolist() for name in ("operation", "first_access", "num_accesses"))
    for index, (operation, start, count) in enumerate(zip(*columns, strict=True)):
        alike.setdefault((operation, *sizes_of[start : start + count]), []).append(index)
    measured: NDArray[np.int64] = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    durations = np.zeros_like(measured)
    for members in alike.values():
        durations[members] = measured[members].min()
    return durations


def _without_reuse(flow: AccessLists, steps: Sequence[int]) -> TaskGraph:
    """Return the order of the flow with fresh handles; the handles of its edges aren't those of the trace."""
    fresh = 0
    current: dict[int, int] = {}  # for each handle the one that stands for it
    renewed: dict[int, int] = {}  # for each handle the step in which it last got a fresh one
    renamed = []
    for accesses, step in zip(flow, steps, strict=True):
        for handle, mode in accesses:
            is_first_write = mode == AccessMode.WRITE and renewed.get(handle) != step
            if is_first_write:
                renewed[handle] = step
            if is_first_write or handle not in current:
                current[handle] = fresh
                fresh += 1
        renamed.append([(current[handle], mode) for handle, mode in accesses])
    return graph_of(renamed)
