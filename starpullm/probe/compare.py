"""Two runs of a program compared: the first task whose outputs differ, and where the difference came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.claims import ran_between
from starpullm.probe.findings import Finding, Kind, finding_of
from starpullm.probe.flow import Flow


@dataclass(frozen=True)
class Comparison:
    """What two runs had in common, and what explains their differences.

    ``outputs`` counts pairs of contents after a task that were compared, ``inputs`` pairs of contents before. Of
    ``tolerated`` outputs the difference comes from accesses that StarPU may reorder, or from what the application
    computed from them.
    """

    outputs: int
    inputs: int
    handles: int
    different: int
    tolerated: int
    findings: tuple[Finding, ...]


def compare(reference: Flow, other: Flow, schedule: str) -> Comparison:
    """Compare each task's inputs and outputs with those of the same task in another run."""
    mismatch = _other_tasks(reference, other, schedule)
    if mismatch is not None:
        return Comparison(0, 0, 0, 0, 0, (mismatch,))
    pairs = _Pairs(reference, other)
    findings = list(pairs.explain(schedule))
    final = {int(reference.handle[access]) for access in np.flatnonzero(pairs.outputs).tolist()}
    return Comparison(
        outputs=int(pairs.outputs.sum()),
        inputs=int(pairs.inputs.sum()),
        handles=len(final),
        different=int(pairs.output_differs.sum()),
        tolerated=pairs.num_tolerated,
        findings=tuple(findings),
    )


def _other_tasks(reference: Flow, other: Flow, schedule: str) -> Finding | None:
    """Return a finding if the runs don't have the same tasks with the same accesses, in one order."""
    num_tasks = min(reference.num_tasks, other.num_tasks)
    names = [np.array(flow.log.names)[flow.codelet[:num_tasks]] for flow in (reference, other)]
    counts = [np.diff(flow.first)[:num_tasks] for flow in (reference, other)]
    different = (names[0] != names[1]) | (counts[0] != counts[1])
    where = int(np.argmax(different)) if different.any() else num_tasks
    num_accesses = int(reference.first[where])
    accesses = (reference.handle[:num_accesses] != other.handle[:num_accesses]) | (
        reference.mode[:num_accesses] != other.mode[:num_accesses]
    )
    if accesses.any():
        where = int(reference.task[int(np.argmax(accesses))])
    elif where == num_tasks:
        if reference.num_tasks == other.num_tasks:
            return None
        text = f"{reference.num_tasks} tasks in the reference schedule, {other.num_tasks} here"
        return Finding(Kind.OTHER_TASKS, schedule, text, where)
    text = (
        f"in the reference schedule {_described(reference, where)}, here {_described(other, where)}: the tasks or "
        "their order depend on the schedule, so tasks can't be compared one by one"
    )
    return Finding(Kind.OTHER_TASKS, schedule, text, where)


def _described(flow: Flow, task: int) -> str:
    accesses = range(int(flow.first[task]), int(flow.first[task + 1]))
    return f"{flow.name(task)} has {len(accesses)} accesses, of " + (
        ", ".join(f"handle {flow.handle[access]}" for access in accesses) or "no handle"
    )


class _Origin(Enum):
    """Where the difference of an input between two runs comes from."""

    HANDED_ON = 1  # the task that wrote it left other contents
    FREE = 2  # the task that wrote it can't be compared: its order is free, or its contents can't be read
    OUTSIDE = 3  # no task wrote it
    APPLICATION = 4  # the application may have acquired it since
    NOBODY = 5  # nobody who declares that


class _Pairs:
    """The accesses of two runs with the same tasks, side by side."""

    def __init__(self, reference: Flow, other: Flow) -> None:
        self.reference, self.other = reference, other
        before, after = ([(flow.before, flow.after)[which] for flow in (reference, other)] for which in (0, 1))
        self.inputs = reference.reads & before[0][1] & before[1][1]
        self.input_differs = self.inputs & (before[0][0] != before[1][0])
        self.outputs = reference.writes & after[0][1] & after[1][1]
        self.output_differs = self.outputs & (after[0][0] != after[1][0])
        self.unknown_input = reference.reads & ~(before[0][1] & before[1][1])
        self.num_tolerated = 0
        arguments = [flow.log.tasks["arguments"][flow.tasks] for flow in (reference, other)]
        self.other_arguments = arguments[0] != arguments[1]
        self._after_of_log = [flow.log.hashes_of_accesses(probe_log.AFTER) for flow in (reference, other)]

    def explain(self, schedule: str) -> Iterator[Finding]:
        """Yield what explains the differences, in the order of submission."""
        bad_input = self._tasks_with(self.input_differs | self.unknown_input)
        suspicious = self._tasks_with(self.output_differs) & ~bad_input & ~self.other_arguments
        seen: set[int] = set()
        free = self._free()
        may_be_handed_on = False  # by the application, once something differs
        tolerated: set[int] = set()  # tasks with inputs that differ because of a free order
        for access in np.flatnonzero(self.input_differs | self.output_differs | free).tolist():
            task = int(self.reference.task[access])
            finding = None
            if free[access]:
                may_be_handed_on = True
            if self.input_differs[access]:
                origin = self._origin(access)
                if origin is _Origin.HANDED_ON:
                    writer = int(np.searchsorted(self.reference.tasks, self._writers(access)[0]))
                    if writer in tolerated:
                        tolerated.add(task)
                elif origin is _Origin.FREE or (may_be_handed_on and origin is not _Origin.NOBODY):
                    tolerated.add(task)
                else:
                    finding = self._input(schedule, access, origin)
            elif self.output_differs[access] and suspicious[task]:
                finding = self._output(schedule, access)
            if finding is not None and task not in seen:
                seen.add(task)
                may_be_handed_on = True
                yield finding
        self.num_tolerated = int((self.output_differs & np.isin(self.reference.task, list(tolerated))).sum())

    def _free(self) -> NDArray[np.bool_]:
        flow = self.reference
        return flow.is_free | ((flow.mode & probe_log.MODE_REDUX) != 0)

    def _tasks_with(self, accesses: NDArray[np.bool_]) -> NDArray[np.bool_]:
        marked = np.zeros(self.reference.num_tasks, bool)
        marked[self.reference.task[accesses]] = True
        return marked

    def _output(self, schedule: str, access: int) -> Finding:
        task = int(self.other.task[access])
        others = self._beside(task)
        return finding_of(
            Kind.OUTPUT_DIFFERS,
            schedule,
            self.other,
            access,
            "{task} left other contents in {handle} than in the reference schedule, although its inputs were equal: it "
            "reads or shares something that it doesn't declare",
            suspects=tuple(self.other.name(other) for other in others.tolist()),
        )

    def _beside(self, task: int) -> NDArray[np.int64]:
        """Return the tasks that ran on the other side of this one than in the reference schedule, or beside it."""
        one, two = self.reference, self.other
        earlier = (one.end_ns <= one.start_ns[task]) & (two.end_ns <= two.start_ns[task])
        later = (one.start_ns >= one.end_ns[task]) & (two.start_ns >= two.end_ns[task])
        ran = (one.start_ns >= 0) & (two.start_ns >= 0)
        ran[task] = False
        return np.flatnonzero(ran & ~earlier & ~later)

    def _writers(self, access: int) -> tuple[int, int]:
        """Return the tasks, of either log, that last wrote an input; -1: nobody did."""
        sources = (int(flow.source[access]) for flow in (self.reference, self.other))
        logs = (self.reference.log, self.other.log)
        one, two = (
            int(log.task_of_access[source]) if source >= 0 else -1 for log, source in zip(logs, sources, strict=True)
        )
        return one, two

    def _origin(self, access: int) -> _Origin:
        """Return where the difference of an input comes from."""
        sources = [int(flow.source[access]) for flow in (self.reference, self.other)]
        if min(sources) < 0:
            return _Origin.OUTSIDE
        values = []
        for (hashes, known), source in zip(self._after_of_log, sources, strict=True):
            if not known[source]:
                return _Origin.FREE
            values.append(hashes[source])
        if values[0] != values[1]:
            return _Origin.HANDED_ON
        return _Origin.APPLICATION if self._application_may_have_written(access) else _Origin.NOBODY

    def _input(self, schedule: str, access: int, origin: _Origin) -> Finding:
        found = "{task} found other contents in {handle} than in the reference schedule, "
        if origin is _Origin.NOBODY:
            text = (
                "although the last task that declares to write it had left the same: another task writes it without "
                "declaring that"
            )
            writer, reader = self._writers(access)[1], int(self.other.task[access])
            suspects = tuple(self.other.name(task) for task in ran_between(self.other, writer, reader).tolist())
            return finding_of(Kind.INPUT_CHANGED, schedule, self.other, access, found + text, suspects=suspects)
        text = (
            "and no task had written it"
            if origin is _Origin.OUTSIDE
            else "although the last task that wrote it had left the same; the application may have changed it since"
        )
        return finding_of(Kind.INPUT_FROM_OUTSIDE, schedule, self.other, access, found + text)

    def _application_may_have_written(self, access: int) -> bool:
        log = self.other.log
        writer = self._writers(access)[1]
        reader = int(self.other.tasks[self.other.task[access]])
        submitted = int(log.tasks["submit_ns"][reader])
        acquired = (log.tasks["flags"][writer:reader] & probe_log.ACQUIRE) != 0
        ended = int(log.times(probe_log.END)[writer])
        return bool(acquired.any()) or ended < 0 or submitted >= ended
