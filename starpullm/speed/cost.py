"""The cost of a step's task graph, which doesn't depend on the machine's speed: tasks, bytes, the longest chains.

The throughput gate compares it exactly, between two builds or with a stored run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from starpullm.checks.dependencies.required_order import required_edges
from starpullm.checks.result import Finding, Outcome, Result
from starpullm.trace import AccessMode, Trace
from starpullm.traces.merge import is_kernel


@dataclass(frozen=True, kw_only=True)
class GraphCost:
    """Numbers that follow from a step's tasks and accesses alone, so that they are the same in every run.

    ``tasks`` are those of all ranks, without messages; ``bytes_between_ranks`` are in messages. ``bytes_between_tasks``
    is what tasks read: that many bytes are moved if every task runs on another worker than those that wrote its data,
    and never more. How many really are moved depends on the scheduler. ``path_tasks`` counts those on the critical
    path. ``path_bytes`` is what the tasks of a chain read and write, for the chain with the most of it.
    """

    tasks: int
    bytes_between_tasks: int
    bytes_between_ranks: int
    path_tasks: int
    path_bytes: int


def graph_cost(trace: Trace) -> GraphCost:
    """Return the cost of the last step of a trace, messages between ranks included."""
    steps = trace.tasks["step"]
    last = steps == steps.max()
    tasks, kernel = trace.tasks[last], is_kernel(trace)[last]
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)
    read, touched = np.zeros(len(tasks), np.int64), np.zeros(len(tasks), np.int64)
    for index, task in enumerate(tasks):
        first = int(task["first_access"])
        own = trace.accesses[first : first + int(task["num_accesses"])]
        size = sizes[own["handle"]]
        touched[index] = size.sum()
        read[index] = size[own["mode"] != AccessMode.WRITE].sum()
    graph = required_edges(tasks, trace.accesses)
    return GraphCost(
        tasks=int(kernel.sum()),
        bytes_between_tasks=int(read[kernel].sum()),
        bytes_between_ranks=int(read[~kernel].sum()),
        path_tasks=graph.critical_path(kernel.astype(np.int64))[0],
        path_bytes=graph.critical_path(touched)[0],
    )


def check_cost(now: GraphCost, baseline: GraphCost) -> Result:
    """Compare two costs exactly; the check fails if any number has grown.

    The fact ``accepted`` is what later runs are to be compared with: the baseline, as long as a number has grown.
    """
    names = [field.name for field in fields(GraphCost)]
    costs = {name: (getattr(now, name), getattr(baseline, name)) for name in names}
    grown, shrunk = sum(new > old for new, old in costs.values()), sum(new < old for new, old in costs.values())
    sentence = f"{grown} of {len(names)} numbers have grown" if grown else "no number has grown"
    changes = {
        name.replace("_", " "): f"{new}, baseline {old} ({new - old:+d})"
        for name, (new, old) in costs.items()
        if new != old
    }
    return Result(
        check="graph cost",
        outcome=Outcome.FAILED if grown else Outcome.PASSED,
        sentence=f"{sentence}, {shrunk} have shrunk" if shrunk else sentence if grown else "the same graph",
        compared=len(names),
        unit="numbers",
        measured=grown,
        findings=(Finding(sentence, changes),) if changes else (),
        count=grown,
        facts={"now": now, "baseline": baseline, "accepted": baseline if grown else now},
    )
