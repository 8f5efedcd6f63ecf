"""StarPU's own graph of the submitted tasks, compared with the required order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from starpullm.checks.cases import Case
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.check_context import CheckContext
from starpullm.checks.observer import Observer
from starpullm.checks.result import MAX_LISTED, Finding, Result
from starpullm.checks.training import STEPS, local_batch, traced_trainer
from starpullm.errors import InvalidArgumentError
from starpullm.graph.required_order import AccessLists, edge_text, graph_of, task_flow
from starpullm.graph.task_graph import Edge, TaskGraph
from starpullm.trace import AccessMode, Trace
from starpullm.trainer import Trainer


@check
class RuntimeGraph(Check):
    """Compare StarPU's graph of two steps, read while their tasks are held back, with the required order.

    Passed: every required edge is implied by a path of the runtime's graph, and every edge of the runtime by a path of
    required edges. Required edges that a longer path implies aren't counted.
    """

    family, unit = "dependencies", "required edges"
    claim = "StarPU's graph has every edge that the declared accesses require, by a path, and no other"
    fault = "StarPU's graph is not the one that the declared accesses require"
    cannot_see = "whether the declarations are true (accesses)"
    needs = Needs(Where.ONE_WORKER, ranks=(1, 1), sharing=True)

    def run(self, context: CheckContext, case: Case) -> Result:
        """Hold back the tasks of steps after the first: StarPU forgets the successors of tasks that have run."""
        with traced_trainer(context, case) as trainer:
            edges = run_held_steps(trainer, case.seed)
            return self.judge(trainer.trace(), edges)

    def judge(self, trace: Trace, runtime_edges: ArrayLike) -> Result:
        """Compare the graph that the runtime made of the submitted tasks with the required order.

        None of the trace's tasks had started when the runtime was asked. ``runtime_edges`` are integers (E, 2): ids of
        a task and of a task that waits for it. Ids that the trace doesn't have are tasks that the runtime created
        itself, for synchronisation; they count only as links of a path. An `InvalidArgumentError` is raised if an edge
        goes from a task to one that was submitted before it.
        """
        ids = trace.tasks["id"]
        flow = task_flow(trace.tasks, trace.accesses)
        required = graph_of(flow).reduced()
        position_of = dict(zip(ids.tolist(), range(len(ids)), strict=True))
        runtime = _plain_graph(len(ids), _contracted(np.asarray(runtime_edges, np.int64).reshape(-1, 2), position_of))
        missing: dict[tuple[int, int], Edge] = {}
        for index in np.flatnonzero(~runtime.implies(required.before, required.after)).tolist():
            edge = required.edge(index)
            missing.setdefault((edge.before, edge.after), edge)
        superfluous = np.flatnonzero(~required.implies(runtime.before, runtime.after))
        pairs = [(int(runtime.before[index]), int(runtime.after[index])) for index in superfluous.tolist()]
        sentences = [f"missing: {edge_text(trace, edge)}" for edge in list(missing.values())[:MAX_LISTED]]
        sentences += [f"superfluous: {_superfluous(trace, flow, *pair)}" for pair in pairs[:MAX_LISTED]]
        return self.result(
            compared=len(np.unique(required.before * len(ids) + required.after)),
            findings=[Finding(sentence) for sentence in sentences],
            count=len(missing) + len(pairs),
            note=f"{len(missing)} missing, {len(pairs)} superfluous of {runtime.num_edges} of the runtime",
            missing=[ids[list(pair)].tolist() for pair in list(missing)[:MAX_LISTED]],
            superfluous=[ids[list(pair)].tolist() for pair in pairs[:MAX_LISTED]],
        )


def run_held_steps(trainer: Trainer, seed: int) -> NDArray[np.int64]:
    """Submit steps after the first, let none of their tasks run before the last is there, and return StarPU's edges."""
    first, *held = (local_batch(trainer, seed, number) for number in range(STEPS - 1))
    trainer.submit(*first)
    trainer.wait()
    trainer.clear_trace()
    observer = Observer(trainer)
    observer.hold()
    for batch in held:
        trainer.submit(*batch)
    return observer.release()


def _contracted(edges: NDArray[np.int64], position_of: dict[int, int]) -> list[tuple[int, int]]:
    """Return the pairs of recorded tasks that are joined directly or by a path of the runtime's own tasks."""
    successors: dict[int, list[int]] = {}
    for before, after in edges.tolist():
        if before in position_of and after in position_of and position_of[before] >= position_of[after]:
            raise InvalidArgumentError(
                f"runtime edge {before} → {after}: found a task that waits for one submitted after it, expected before"
            )
        successors.setdefault(before, []).append(after)
    pairs = set()
    for before in successors.keys() & position_of.keys():
        seen: set[int] = set()
        unvisited = list(successors[before])
        while unvisited:
            task = unvisited.pop()
            if task in seen:
                continue
            seen.add(task)
            if task in position_of:
                pairs.add((position_of[before], position_of[task]))
            else:
                unvisited += successors.get(task, [])
    return sorted(pairs, key=lambda pair: pair[::-1])


def _plain_graph(num_tasks: int, pairs: Sequence[tuple[int, int]]) -> TaskGraph:
    """Return the graph of edges without handles; the pairs are sorted by the later task."""
    table = np.array(pairs, np.int64).reshape(-1, 2)
    first = np.searchsorted(table[:, 1], np.arange(num_tasks + 1))
    return TaskGraph(first, table[:, 0], np.full(len(table), -1), np.zeros(len(table), np.int8))


def _superfluous(trace: Trace, flow: AccessLists, before: int, after: int) -> str:
    """Return the tasks of an edge that nothing requires, and the handles of both with their modes."""
    earlier, later = dict(flow[before]), dict(flow[after])
    common = ", ".join(
        f"{trace.handles[handle].name} ({_mode_name(mode)}, {_mode_name(later[handle])})"
        for handle, mode in earlier.items()
        if handle in later
    )
    return f"{trace[before]} → {trace[after]}: {common or 'no handle in common'}"


def _mode_name(mode: int) -> str:
    return AccessMode(mode).name.lower().replace("_", "-")
