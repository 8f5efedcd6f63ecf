"""What one run shows of the declared accesses, without another run to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.findings import Fault, ProgramFinding, finding_of
from starpullm.probe.program_tasks import TaskFlow, counted


def written_though_read(schedule: str, flow: TaskFlow, *, is_serial: bool = True) -> Iterator[ProgramFinding]:
    """Yield tasks that changed a handle that they only read: its contents after the task are not those before.

    Where another task could have changed it meanwhile, nothing is said: a schedule has to run one task at a time, but a
    device has a copy of its own.
    """
    before, has_before = flow.before
    after, has_after = flow.after
    wrong = flow.only_reads & has_before & has_after & (before != after) & (is_serial | flow.ran_on_device[flow.task])
    for access in np.flatnonzero(wrong).tolist():
        sentence = "changes data that it declares to read only"
        yield finding_of(Fault.READ_WRITTEN, schedule, flow, access, sentence, evidence="other contents after it")


def not_waited_for(schedule: str, flow: TaskFlow) -> Iterator[ProgramFinding]:
    """Yield what tasks on devices changed after their functions had returned."""
    returned, known = (values[flow.accesses] for values in flow.log.hashes_of_accesses(probe_log.RETURNED))
    for access in np.flatnonzero(known & (returned != flow.after[0])).tolist():
        sentence = "returns before what it has started on the device ends"
        evidence = "other contents when the device's queue is empty"
        yield finding_of(Fault.NOT_WAITED, schedule, flow, access, sentence, evidence=evidence)


def changed_between(schedule: str, flow: TaskFlow) -> Iterator[ProgramFinding]:
    """Yield inputs whose contents are not what the last task with this handle left.

    The application may change data while it has acquired them, which isn't always recorded. An acquisition waits for
    the tasks before it, so none lies between two tasks of which the second was submitted before the first had ended,
    or by it. Only such pairs are judged.
    """
    before, has_before = flow.before
    log = flow.log
    all_after, all_known = log.hashes_of_accesses(probe_log.AFTER)
    ends = log.times(probe_log.END)
    acquired = np.cumsum((log.tasks["flags"] & probe_log.ACQUIRE) != 0)
    judged = flow.reads & has_before & (flow.observed >= 0) & ~flow.has_no_order & ~flow.is_raced
    for access in np.flatnonzero(judged).tolist():
        last = int(flow.observed[access])
        if not all_known[last] or all_after[last] == before[access]:
            continue
        earlier, later = int(log.task_of_access[last]), int(flow.tasks[flow.task[access]])
        is_by_it = int(log.tasks["submitter"][later]) == earlier + 1
        if ends[earlier] < 0 or (int(log.tasks["submit_ns"][later]) >= ends[earlier] and not is_by_it):
            continue
        if acquired[earlier] != acquired[later]:
            continue
        yield finding_of(
            Fault.CHANGED_BETWEEN,
            schedule,
            flow,
            access,
            f"finds other contents than {_name_in_log(flow, earlier)} left",
            evidence="no task between them declares to write it",
            suspects=ran_between(flow, earlier, int(flow.task[access])).tolist(),
        )


def _name_in_log(flow: TaskFlow, task: int) -> str:
    position = flow.position(task)
    return "a task of StarPU's own" if position is None else flow.name(position)


def ran_between(flow: TaskFlow, earlier_in_log: int, later: int) -> NDArray[np.int64]:
    """Return the tasks that ran, at least in part, after the end of one task and before the start of another."""
    since = flow.log.times(probe_log.END)[earlier_in_log]
    until = flow.start_ns[later]
    ran = (flow.start_ns >= 0) & (flow.start_ns < until) & ((flow.end_ns < 0) | (flow.end_ns > since))
    ran[later] = False
    return np.flatnonzero(ran & (flow.tasks != earlier_in_log))


def never_changed(flows: Sequence[TaskFlow]) -> Iterator[ProgramFinding]:
    """Yield updates that never changed a byte in any task of their codelet, in any run.

    Such tasks wait for each other without need, unless the data only happen to make it so.
    """
    changed: dict[tuple[str, int], bool] = {}
    example: dict[tuple[str, int], tuple[TaskFlow, int]] = {}
    for flow in flows:
        before, has_before = flow.before
        after, has_after = flow.after
        updates = flow.reads & flow.writes & has_before & has_after
        position = np.arange(len(flow.task)) - flow.first[:-1][flow.task] if len(flow.task) else flow.task
        for access in np.flatnonzero(updates).tolist():
            key = flow.log.names[int(flow.codelet[flow.task[access]])], int(position[access])
            changed[key] = changed.get(key, False) or bool(before[access] != after[access])
            example.setdefault(key, (flow, access))
    for key, (flow, access) in example.items():
        if not changed[key]:
            yield finding_of(
                Fault.NEVER_CHANGED,
                "all runs",
                flow,
                access,
                "changes nothing of what it declares to update",
                evidence=f"no task of “{key[0]}” did in any run; with R instead of RW, they could run at the same time",
            )


def never_ran(flows: Sequence[TaskFlow]) -> dict[str, int]:
    """Return how many implementations ran in no run, by the name of the codelet that has them."""
    left: dict[str, int] = {}
    for flow in flows:
        ran_by = flow.log.of_tasks("implementation", probe_log.START)
        columns = flow.codelet, flow.log.tasks["implementations"][flow.tasks], ran_by[flow.tasks]
        for codelet, existing, ran in set(zip(*(column.tolist() for column in columns), strict=True)):
            if ran >= 0:
                name = flow.log.names[codelet]
                left[name] = left.get(name, existing) & ~(1 << ran)
    return {name: implementations.bit_count() for name, implementations in left.items() if implementations}


def nothing_to_compare(flows: Sequence[TaskFlow]) -> str:
    """Return a sentence about the accesses of tasks that left nothing to compare; StarPU's own have no function."""
    runs = np.concatenate([flow.has_function[flow.task] for flow in flows])
    modes = np.concatenate([flow.mode for flow in flows])[runs]
    sizes = np.concatenate([flow.log.handles["bytes"][flow.handle_of_log[flow.handle]] for flow in flows])[runs]
    sums, writes = (modes & probe_log.MODE_REDUX) != 0, ((modes & probe_log.MODE_WRITE) != 0) & (sizes > 0)
    return (
        f"of {counted(len(modes), 'access')} {sums.sum()} add to reductions of which no task reads the result, and "
        f"{writes.sum()} write what can't be read, expected one that writes to an interface of StarPU's"
    )
