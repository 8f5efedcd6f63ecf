"""A log as a task flow: the program's tasks by number, handles by first use, and where each input came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.files.probe_log import ProbeLog

_NOT_THE_PROGRAMS = probe_log.NO_CODELET | probe_log.INTERNAL | probe_log.ACQUIRE | probe_log.LAST
_WITHOUT_VALUE = probe_log.MODE_REDUX | probe_log.MODE_COMMUTE
_WRITES = probe_log.MODE_WRITE | probe_log.MODE_REDUX


@dataclass(frozen=True, eq=False)
class TaskFlow:
    """The tasks that the program itself submitted, in the order of submission; StarPU's own are left out.

    Those that other tasks have submitted come behind: the order of all is that of each submitter only.

    StarPU's own tasks come and go with the timing, so only without them are numbers the same in every run. Behind them
    come, as if they were tasks, the application's last looks at handles of which no task shows the last contents: those
    that are unregistered after accesses whose order is free. Arrays have one entry for each access of all of these.
    """

    log: ProbeLog
    tasks: NDArray[np.int64]
    """Of the log."""
    first: NDArray[np.int64]
    """The accesses of task t are ``first[t]`` to ``first[t + 1] - 1``."""
    accesses: NDArray[np.int64]
    """Of the log."""
    handle: NDArray[np.int64]
    """By first use in these tasks."""
    handle_of_log: NDArray[np.int64]
    """By number here."""

    @property
    def num_tasks(self) -> int:
        """The number of tasks, with the application's last looks."""
        return len(self.tasks)

    @cached_property
    def is_last(self) -> NDArray[np.bool_]:
        """Whether this is no task, but the application's last look at a handle."""
        return _has(self.log.tasks["flags"][self.tasks], probe_log.LAST)

    @property
    def num_submitted(self) -> int:
        """The number of tasks that the program submitted."""
        return int((~self.is_last).sum())

    def truncated(self, num_tasks: int) -> TaskFlow:
        """Return the flow of the first tasks."""
        return _flow(self.log, self.tasks[:num_tasks])

    @cached_property
    def is_nested(self) -> bool:
        """Whether tasks have submitted tasks of the program."""
        return bool(self.log.tasks["submitter"][self.tasks].any())

    @cached_property
    def task(self) -> NDArray[np.int64]:
        """The task of each access."""
        return np.repeat(np.arange(self.num_tasks), np.diff(self.first))

    @cached_property
    def mode(self) -> NDArray[np.int64]:
        """StarPU's access mode of each access."""
        return self.log.accesses["mode"][self.accesses].astype(np.int64)

    @cached_property
    def is_free(self) -> NDArray[np.bool_]:
        """Whether StarPU is free to reorder the access."""
        return self.is_unordered | _has(self.mode, probe_log.MODE_COMMUTE)

    @cached_property
    def is_ordered_sum(self) -> NDArray[np.bool_]:
        """Whether each access of the log is a contribution to a reduction, in the order of submission."""
        is_ordered = _has(self.log.accesses["flags"], probe_log.ORDERED)
        return is_ordered & _has(self.log.accesses["mode"], probe_log.MODE_REDUX)

    @cached_property
    def is_unordered(self) -> NDArray[np.bool_]:
        """Whether sequential consistency is off for the access."""
        return _has(self.log.accesses["flags"][self.accesses], probe_log.NO_ORDER)

    @cached_property
    def before(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The hash of each access's contents before its task, and whether there is one."""
        return self._hashes(probe_log.BEFORE)

    @cached_property
    def after(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The hash of each access's contents after its task, and whether there is one."""
        return self._hashes(probe_log.AFTER)

    def _hashes(self, time: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        values, known = self.log.hashes_of_accesses(time)
        return values[self.accesses], known[self.accesses]

    @cached_property
    def reads(self) -> NDArray[np.bool_]:
        """Whether an access reads what was there, REDUX and SCRATCH excepted."""
        own = _has(self.mode, probe_log.MODE_SCRATCH | probe_log.MODE_REDUX)
        return _has(self.mode, probe_log.MODE_READ) & ~own

    @cached_property
    def writes(self) -> NDArray[np.bool_]:
        """Whether an access changes the handle, REDUX included."""
        return _has(self.mode, _WRITES)

    @cached_property
    def only_reads(self) -> NDArray[np.bool_]:
        """Whether an access is a read, and no other access of its task writes the handle."""
        key = self.task * (len(self.handle_of_log) + 1) + self.handle
        return self.reads & ~self.writes & ~np.isin(key, key[self.writes])

    @cached_property
    def has_no_order(self) -> NDArray[np.bool_]:
        """Whether sequential consistency is off for some access of the same handle, so that none is its last writer."""
        log = self.log
        unordered = log.accesses["handle"][_has(log.accesses["flags"], probe_log.NO_ORDER)]
        return np.isin(self.handle_of_log[self.handle], unordered)

    @cached_property
    def is_raced(self) -> NDArray[np.bool_]:
        """Whether threads submitted accesses of the same handle at once."""
        return self.log.raced_handles[self.handle_of_log[self.handle]]

    @cached_property
    def codelet(self) -> NDArray[np.int64]:
        """The name of each task's codelet, as an index into the log's names."""
        return self.log.tasks["codelet"][self.tasks].astype(np.int64)

    @cached_property
    def start_ns(self) -> NDArray[np.int64]:
        """When each task started; -1: never."""
        return self.log.times(probe_log.START)[self.tasks]

    @cached_property
    def end_ns(self) -> NDArray[np.int64]:
        """When each task ended; -1: never."""
        return self.log.times(probe_log.END)[self.tasks]

    @cached_property
    def ready_ns(self) -> NDArray[np.int64]:
        """When each task was ready; -1: never, or bound to a worker by the program."""
        return self.log.times(probe_log.READY)[self.tasks]

    @cached_property
    def has_function(self) -> NDArray[np.bool_]:
        """Whether a task runs a function; others only order the ones around them."""
        return ~_has(self.log.tasks["flags"][self.tasks], probe_log.NOWHERE)

    @cached_property
    def ran_on_device(self) -> NDArray[np.bool_]:
        """Whether each task ran on a device."""
        return np.asarray(self.log.of_tasks("implementation", probe_log.START)[self.tasks] >= probe_log.ON_DEVICE)

    def position(self, task_of_log: int) -> int | None:
        """Return the number of a task of the log; None if the program didn't submit it."""
        position = int(self._positions[task_of_log])
        return position if position >= 0 else None

    @cached_property
    def _positions(self) -> NDArray[np.int64]:
        positions = np.full(len(self.log.tasks), -1)
        positions[self.tasks] = np.arange(self.num_tasks)
        return positions

    def name(self, task: int) -> str:
        """Return what findings call a task: its codelet, its own name if that is another, and its number."""
        record = self.log.tasks[self.tasks[task]]
        if self.is_last[task]:
            return "the application at the end"
        codelet, own = (self.log.names[int(record[member])] for member in ("codelet", "name"))
        text = codelet or own or "a task without a name"
        if own and own != codelet and codelet:
            text += f" “{own}”"
        return f"{text} (task {task}{', on a device' * bool(self.ran_on_device[task])})"

    def handle_text(self, handle: int) -> str:
        """Return what findings say of a handle: number, coordinates if it has any, and its elements."""
        record = self.log.handles[self.handle_of_log[handle]]
        where = ", ".join(map(str, record["coordinates"][: record["num_coordinates"]].tolist()))
        name = f"{handle} at ({where})" if where else f"{handle}"
        sizes = [int(size) for size in record["sizes"]]
        while len(sizes) > 1 and sizes[-1] <= 1:
            sizes.pop()
        if int(record["element_bytes"]) == 0 or sizes == [1]:
            return f"{name}: {counted(int(record['bytes']), 'byte')}"
        return f"{name}: {' × '.join(map(str, sizes))} × {counted(int(record['element_bytes']), 'byte')}"

    def element_name(self, handle: int, element: int) -> str:
        """Return what findings call an element of a handle."""
        return element_name(self.log.handles[self.handle_of_log[handle]], element)

    @cached_property
    def source(self) -> NDArray[np.int64]:
        """The last access before each access that wrote its handle: an access of the log. -1: nobody wrote it before.

        Before means in the order of submission; among accesses that commute, and of raced handles, as they ran.
        """
        return self._previous(_has(self.log.accesses["mode"], _WRITES))[self.accesses]

    def contributors(self, handle: int, before: int) -> list[int]:
        """Return the tasks before another one that add to a handle."""
        found = _has(self.mode, _WITHOUT_VALUE) & (self.handle == handle) & (self.task < before)
        return [int(task) for task in self.task[found]]

    def writer(self, access: int) -> int:
        """Return the task of the log that last wrote what an access finds; -1: nobody did."""
        source = int(self.source[access])
        return int(self.log.task_of_access[source]) if source >= 0 else -1

    @cached_property
    def writers(self) -> NDArray[np.int64]:
        """The task that last wrote what each access finds; -1: none is known, or its order is free."""
        return self._tasks_of(self.source)

    @cached_property
    def own_writers(self) -> NDArray[np.int64]:
        """As `writers`, as if StarPU's own tasks wrote nothing: when it submits them depends on the timing."""
        is_own = np.isin(self.log.task_of_access, self.tasks)
        return self._tasks_of(self._previous(_has(self.log.accesses["mode"], _WRITES) & is_own)[self.accesses])

    def _tasks_of(self, sources: NDArray[np.int64]) -> NDArray[np.int64]:
        is_known = (sources >= 0) & ~self.is_free & ~self.has_no_order & ~self.commutes[sources]
        return np.where(is_known, self._positions[self.log.task_of_access[sources]], -1)

    @cached_property
    def observed(self) -> NDArray[np.int64]:
        """As `source`, but the last access of any kind, so that a change is found between two looks at the handle."""
        return self._previous(np.ones(len(self.log.accesses), bool))[self.accesses]

    @cached_property
    def commutes(self) -> NDArray[np.bool_]:
        """Whether each access of the log is one of several in a row that commute."""
        order, group = self._groups
        result = np.zeros(len(order), bool)
        result[order] = np.bincount(group)[group] > 1 if len(group) else False
        return result

    @cached_property
    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The accesses of the log by handle and in the order of submission, and the number of the group of each.

        Accesses of a handle that commute and follow each other are one group; each other access is one by itself.
        """
        handle, mode = self.log.accesses["handle"], self.log.accesses["mode"]
        order = np.argsort(handle, kind="stable")
        commutes = (mode[order] & probe_log.MODE_COMMUTE) != 0
        begins = np.ones(len(order), bool)
        begins[1:] = ~(commutes[1:] & commutes[:-1] & (handle[order][1:] == handle[order][:-1]))
        return order, np.cumsum(begins) - 1

    def _previous(self, counts: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return for each access of the log the last one before, of another task and the same handle, that counts."""
        order, group = self._groups
        handles = self.log.accesses["handle"][order]
        group = np.where(self.log.raced_handles[handles], len(group) + handles, group)
        starts = self.log.times(probe_log.START)[self.log.task_of_access][order]
        order = order[np.lexsort((np.where(starts < 0, np.iinfo(np.int64).max, starts), group))]
        task, handle = self.log.task_of_access[order], self.log.accesses["handle"][order]
        previous = np.full(len(handle), -1, np.int64)
        last: dict[int, tuple[int, int, int]] = {}  # by handle: last access that counts, its task, the one before that
        for access, of_task, of_handle, does in zip(
            order.tolist(), task.tolist(), handle.tolist(), counts[order].tolist(), strict=True
        ):
            latest, its_task, earlier = last.get(of_handle, (-1, -1, -1))
            previous[access] = earlier if its_task == of_task else latest
            if does:
                last[of_handle] = access, of_task, earlier if its_task == of_task else latest
        return previous


def element_name(handle: np.void, element: int) -> str:
    """Return what findings call an element: its number, and its indices in a dense handle, by the handle's record."""
    sizes = handle["sizes"].astype(np.int64)
    if int(np.prod(sizes)) <= element or int((sizes > 1).sum()) < 2:
        return f"element {element}"
    indices = np.unravel_index(element, sizes.tolist(), order="F")
    used = [str(int(index)) for index, size in zip(indices, sizes, strict=True) if size > 1]
    return f"element {element} ({', '.join(used)})"


def element_at(handle: np.void, address: int) -> int | None:
    """Return the number of the element of a dense handle that lies at an address; None if none does."""
    rest, element = address - int(handle["address"]), 0
    for size, stride in zip(handle["sizes"][::-1].tolist(), handle["strides"][::-1].tolist(), strict=True):
        index, rest = divmod(rest, stride) if size > 1 else (0, rest)
        if not 0 <= index < size:
            return None
        element = element * size + index
    return element


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, name: str) -> str:
    """Return a number with a name, in the plural if it isn't 1."""
    plural = f"{name}es" if name.endswith("s") else f"{name}s"
    return f"{number} {name if number == 1 else plural}"


def _has(values: NDArray[np.integer], bits: int) -> NDArray[np.bool_]:
    """Return which values have at least one of these bits."""
    result: NDArray[np.bool_] = (values & bits) != 0
    return result


def flow_of(log: ProbeLog) -> TaskFlow:
    """Return the task flow of a log."""
    flow = _flow(log, _in_order(log))
    return _flow(log, np.concatenate([flow.tasks, _last_looks(flow)]))


def _flow(log: ProbeLog, tasks: NDArray[np.int64]) -> TaskFlow:
    counts = log.tasks["num_accesses"][tasks].astype(np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])
    starts = log.tasks["first_access"][tasks].astype(np.int64)
    accesses = np.repeat(starts - first[:-1], counts) + np.arange(first[-1])
    handles = log.accesses["handle"][accesses].astype(np.int64)
    of_log, positions, inverse = np.unique(handles, return_index=True, return_inverse=True)
    order = np.argsort(positions)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return TaskFlow(log, tasks, first, accesses, rank[inverse.reshape(-1)], of_log[order])


def _in_order(log: ProbeLog) -> NDArray[np.int64]:
    """Return the program's own tasks: those that no task has submitted, then those that these have, and so on.

    Of each submitter they are in the order of submission, which several of them have in common by chance only.
    """
    submitted: dict[int, list[int]] = {}
    for task, submitter in enumerate(log.tasks["submitter"].tolist()):
        submitted.setdefault(submitter - 1, []).append(task)
    tasks = submitted.get(-1, [])
    for task in tasks:  # it grows meanwhile
        tasks += submitted.get(task, ())
    found = np.array(tasks, np.int64)
    return found[~_has(log.tasks["flags"][found], _NOT_THE_PROGRAMS)]


def _last_looks(flow: TaskFlow) -> NDArray[np.int64]:
    """Return the application's last looks at handles that these tasks used, the last time in a free order.

    They are in the order in which the tasks first used the handles; the application's own order may be any.
    """
    log = flow.log
    last: dict[int, bool] = {}  # by handle: whether its last writer's order was free
    is_free = ((log.accesses["mode"] & _WITHOUT_VALUE) != 0) | ((log.accesses["flags"] & probe_log.NO_ORDER) != 0)
    columns = (log.accesses["handle"].tolist(), _has(log.accesses["mode"], _WRITES).tolist(), is_free.tolist())
    is_own = np.isin(log.task_of_access, flow.tasks)
    for (handle, writes, free), own in zip(zip(*columns, strict=True), is_own.tolist(), strict=True):
        if own and (writes or handle not in last):
            last[handle] = writes and free
    looks = np.flatnonzero((log.tasks["flags"] & probe_log.LAST) != 0)
    handles = log.accesses["handle"][log.tasks["first_access"][looks].astype(np.int64)].tolist()
    by_handle = dict(zip(handles, looks.tolist(), strict=True))
    used = flow.handle_of_log.tolist()
    return np.array([by_handle[handle] for handle in used if last[handle] and handle in by_handle], np.int64)
