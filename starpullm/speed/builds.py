"""What the throughput gate compares of two builds beside their speed: the bits of a turn, and the cost of its graph.

The cost doesn't depend on the machine's speed: tasks, bytes, the longest chains. It is compared exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from starpullm.checks.cases import PROMISES, Promise
from starpullm.checks.execution_order import execution_order
from starpullm.checks.result import MAX_LISTED, Finding, Outcome, Result
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import layer_name, tensor_digest
from starpullm.graph.merge import is_kernel
from starpullm.graph.required_order import required_edges
from starpullm.speed.workload import Workload
from starpullm.trace import AccessMode, Trace
from starpullm.trainer import Trainer

_GROUPS = ("grads", "m", "v", "params")


def has_fixed_bits(workload: Workload) -> bool:
    """Return whether two runs of a workload must have the same bits."""
    return workload.matmul == "strict" and PROMISES[workload.reduction] is not Promise.BOUNDED


def digest_tensors(trainer: Trainer) -> dict[str, str]:
    """Return the digests of gradients, m, v and parameters, in the order of execution; all ranks have to call it."""
    return {
        f"{group}/{layer_name(name, layer)}": tensor_digest(trainer.tensor(group, name, layer))
        for group, name, layer in execution_order(trainer.config.num_layers)
        if group in _GROUPS
    }


def check_build_bits(new: Mapping[str, str], baseline: Mapping[str, str], steps: int) -> Result:
    """Compare the digests of two builds after the same steps; passed: they are equal."""
    if set(new) != set(baseline):
        unmatched = min(set(new) ^ set(baseline))
        raise InvalidArgumentError(f"bits of the builds: found {unmatched} in one of them, expected it in both")
    differing = [name for name in new if new[name] != baseline[name]]
    return Result(
        check="bits of the builds",
        outcome=Outcome.FAILED if differing else Outcome.PASSED,
        sentence=f"{len(differing)} of {len(new)} tensors differ after {steps} steps",
        compared=len(new),
        unit="tensors",
        measured=len(differing),
        findings=tuple(map(Finding, differing[:MAX_LISTED])),
        count=len(differing),
    )


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
    sizes = np.array([handle.bytes for handle in trace.handles], np.int64)[trace.accesses["handle"]]
    reads = sizes * (trace.accesses["mode"] != AccessMode.WRITE)
    read, touched = (np.add.reduceat(values, trace.tasks["first_access"])[last] for values in (reads, sizes))
    graph = required_edges(tasks, trace.accesses)
    return GraphCost(
        tasks=int(kernel.sum()),
        bytes_between_tasks=int(read[kernel].sum()),
        bytes_between_ranks=int(read[~kernel].sum()),
        path_tasks=graph.critical_path(kernel.astype(np.int64))[0],
        path_bytes=graph.critical_path(touched)[0],
    )


def check_cost(now: GraphCost, baseline: GraphCost) -> Result:
    """Compare two costs exactly; the check fails if any number has grown."""
    names = [field.name for field in fields(GraphCost)]
    costs = {name: (getattr(now, name), getattr(baseline, name)) for name in names}
    grown, shrunk = sum(new > old for new, old in costs.values()), sum(new < old for new, old in costs.values())
    sentence = f"{grown} of {len(names)} numbers have grown" if grown else "no number has grown"
    changes = tuple(
        Finding(f"{new}, baseline {old} ({new - old:+d})", where=name.replace("_", " "))
        for name, (new, old) in costs.items()
        if new != old
    )
    return Result(
        check="graph cost",
        outcome=Outcome.FAILED if grown else Outcome.PASSED,
        sentence=f"{sentence}, {shrunk} have shrunk" if shrunk else sentence if grown else "the same graph",
        compared=len(names),
        unit="numbers",
        measured=grown,
        findings=changes,
        count=grown,
        facts={"now": now, "baseline": baseline},
    )
