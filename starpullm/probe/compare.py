"""Two runs of a program compared: the first task whose outputs differ, and where the difference came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from starpullm.files import probe_log
from starpullm.probe.findings import Fault, ProgramFinding, finding_of
from starpullm.probe.probe_schedules import REPEATED
from starpullm.probe.program_tasks import TaskFlow, counted
from starpullm.probe.single_run_checks import ran_between


@dataclass(frozen=True, eq=False)
class RunComparison:
    """What two runs had in common, and what explains their differences.

    ``outputs`` counts pairs of contents after a task that were compared. Of ``tolerated`` outputs, those of
    ``tolerated_handles``, the difference comes from accesses that StarPU may reorder, or from what the application
    computed from them; ``allowed_before`` and ``allowed_after`` are the accesses with such differences, without those
    whose own order is free. ``left_out`` counts outputs that aren't compared, because they depend on unsteady tasks.
    ``is_reordered`` says whether accesses whose order is free had another one.
    """

    outputs: int = 0
    handles: int = 0
    different: int = 0
    tolerated: int = 0
    tolerated_handles: tuple[int, ...] = ()
    left_out: int = 0
    is_reordered: bool = False
    findings: tuple[ProgramFinding, ...] = ()
    allowed_before: tuple[int, ...] = ()
    allowed_after: tuple[int, ...] = ()
    unsteady: Unsteady | None = None
    """What differs, if these are two runs of one schedule; None if the tasks can't be compared."""


@dataclass(frozen=True, eq=False)
class Unsteady:
    """Of each task, whether its arguments, which then mean nothing, and its contents change from run to run."""

    arguments: NDArray[np.bool_]
    contents: NDArray[np.bool_]

    def of_tasks(self, num_tasks: int) -> Unsteady:
        """Return the same of a run that may have another number of tasks, of which more are taken as steady."""
        members = (self.arguments[:num_tasks], self.contents[:num_tasks])
        return Unsteady(*(np.pad(member, (0, num_tasks - len(member))) for member in members))

    def with_dependent_tasks(self, flow: TaskFlow) -> Unsteady:
        """Return the same with the tasks that find what such tasks have written."""
        contents = self.contents.copy()
        for task in np.flatnonzero(~contents).tolist() if contents.any() else ():
            own = slice(int(flow.first[task]), int(flow.first[task + 1]))
            contents[task] = contents[flow.writers[own][flow.reads[own] & (flow.writers[own] >= 0)]].any()
        return Unsteady(self.arguments, contents)


def compare(reference: TaskFlow, other: TaskFlow, schedule: str) -> RunComparison:
    """Compare each task's inputs and outputs with those of the same task in another run."""
    return compare_ranks({0: reference}, {0: other}, schedule)[0]


def compare_ranks(
    reference: Mapping[int, TaskFlow],
    other: Mapping[int, TaskFlow],
    schedule: str,
    unsteady: Mapping[int, Unsteady] | None = None,
    *,
    is_same_order: bool = False,
    bounds_devices: bool = False,
) -> dict[int, RunComparison]:
    """Compare the tasks of each rank with the same rank's in another run, in which the same ranks recorded.

    A difference that a rank has received is told by its hashes: a task of another rank left the same contents, in both
    runs. Nothing is said of ``unsteady`` contents. With ``is_same_order``, a free order explains nothing if such tasks
    ran in the same one. With ``bounds_devices``, other contents by another kind of worker are tolerated.
    """
    results: dict[int, RunComparison] = {}
    pairs: dict[int, _Pairs] = {}
    for rank, flow in reference.items():
        mismatch = _other_tasks(flow, other[rank], schedule)
        if mismatch is not None:
            results[rank] = RunComparison(findings=(mismatch,))
        else:
            unsteady_contents = None if unsteady is None else unsteady.get(rank)
            pairs[rank] = _Pairs(flow, other[rank], unsteady_contents, is_same_order, bounds_devices)
    explained = _explain_ranks(pairs, schedule)
    return results | {rank: pairs[rank].comparison(explanation) for rank, explanation in explained.items()}


def _explain_ranks(pairs: Mapping[int, _Pairs], schedule: str) -> dict[int, _Explanation]:
    """Explain the ranks' differences until no rank learns more from what the others have sent."""
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, its_pairs in pairs.items():
        for contents, task in its_pairs.differing_outputs():
            sent.setdefault(contents, []).append((rank, task))
    explained = {rank: its_pairs.explain(schedule, _Elsewhere({}, None)) for rank, its_pairs in pairs.items()}
    while len(pairs) > 1:
        before = {rank: explanation.tolerated for rank, explanation in explained.items()}
        for rank, its_pairs in pairs.items():
            others = [explanation for of_rank, explanation in explained.items() if of_rank != rank]
            received: dict[tuple[int, int], bool] = {}
            for contents, senders in sent.items():
                from_others = [sender for sender in senders if sender[0] != rank]
                if from_others:
                    received[contents] = any(task in explained[sender].tolerated for sender, task in from_others)
            explained[rank] = its_pairs.explain(schedule, _Elsewhere(received, _cause_of(others)))
        if before == {rank: explanation.tolerated for rank, explanation in explained.items()}:
            break
    return explained


def _cause_of(explanations: Iterable[_Explanation]) -> _Cause | None:
    """Return what ranks may have handed on to another one."""
    cause = None
    for explanation in explanations:
        if any(finding.kind is not Fault.INPUT_FROM_OUTSIDE for finding in explanation.findings):
            return _Cause.FAULT
        if explanation.has_free:
            cause = _Cause.FREE
    return cause


def _other_tasks(reference: TaskFlow, other: TaskFlow, schedule: str) -> ProgramFinding | None:
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
    if reference.is_nested or reference.is_raced.any():  # else StarPU has the order of submission
        accesses |= reference.own_writers[:num_accesses] != other.own_writers[:num_accesses]
    if accesses.any():
        where = int(reference.task[int(np.argmax(accesses))])
    elif where == reference.num_tasks == other.num_tasks:
        return None
    tasks = [_described(flow, where) for flow in (reference, other)]
    depend = "change from run to run in one schedule" if schedule == REPEATED.name else "depend on the schedule"
    sentence = f"the tasks or their order {depend}"
    evidence = {"reference schedule": tasks[0], "here": tasks[1]}
    rank = int(reference.log.header["rank"])
    return ProgramFinding(sentence, evidence, kind=Fault.OTHER_TASKS, schedule=schedule, task=where, rank=rank)


def _described(flow: TaskFlow, task: int) -> str:
    if task == flow.num_tasks:
        return f"there are {task} tasks"
    accesses = range(int(flow.first[task]), int(flow.first[task + 1]))
    return f"{flow.name(task)} has {counted(len(accesses), 'access')}, of " + (
        ", ".join(f"handle {flow.handle[access]}" for access in accesses) or "no handle"
    )


class _Origin(Enum):
    """Where the difference of an input between two runs comes from."""

    HANDED_ON = 1  # the task that wrote it left other contents
    FREE = 2  # the task that wrote it can't be compared: its order is free, or its contents can't be read
    OUTSIDE = 3  # no task wrote it
    APPLICATION = 4  # the application may have acquired it since
    NOBODY = 5  # nobody who declares that
    ORDERED_SUM = 6  # tasks of which the contributions to it can't be read, in the order of submission


class _Cause(Enum):
    """What may have made a difference that the application, or a message, has handed on."""

    FREE = 1  # an access whose order is free
    FAULT = 2  # something that is reported


@dataclass(frozen=True)
class _Elsewhere:
    """What other ranks have done: contents that they left, of both runs, and whether these were tolerated."""

    received: Mapping[tuple[int, int], bool]
    cause: _Cause | None


@dataclass(frozen=True)
class _Explanation:
    """Findings in the order of submission, and the tasks whose differences come from a free order."""

    findings: tuple[ProgramFinding, ...]
    tolerated: frozenset[int]
    received_freely: tuple[int, ...]
    has_free: bool


def _ran_in_same_order(one: TaskFlow, two: TaskFlow) -> bool:
    """Return whether tasks with accesses whose order is free ran in the same order on the same workers in both runs."""
    tasks = np.unique(one.task[one.is_free | ((one.mode & probe_log.MODE_REDUX) != 0)])
    its_order, other_order = (np.argsort(flow.start_ns[tasks], kind="stable") for flow in (one, two))
    its_workers, other_workers = (flow.log.workers[flow.tasks[tasks]] for flow in (one, two))
    return np.array_equal(its_order, other_order) and np.array_equal(its_workers, other_workers)


class _Pairs:
    """The accesses of two runs with the same tasks, side by side."""

    def __init__(
        self, reference: TaskFlow, other: TaskFlow, unsteady: Unsteady | None, is_same_order: bool, bounds_devices: bool
    ) -> None:
        self.reference, self.other = reference, other
        self.is_of_kind = (reference.ran_on_device != other.ran_on_device) & bounds_devices
        self.is_reordered = not _ran_in_same_order(reference, other)
        self.is_same_order = is_same_order and not self.is_reordered
        before, after = ([(flow.before, flow.after)[which] for flow in (reference, other)] for which in (0, 1))
        none = np.zeros(0, bool)
        self.unsteady = (unsteady or Unsteady(none, none)).of_tasks(reference.num_tasks)
        is_steady = ~self.unsteady.contents[reference.task]
        self.inputs = reference.reads & before[0][1] & before[1][1] & is_steady
        self.input_differs = self.inputs & (before[0][0] != before[1][0])
        # Several tasks that write parts of a handle in any order leave what the others have written, too.
        parts = reference.commutes[reference.accesses] & ~reference.reads
        outputs = reference.writes & after[0][1] & after[1][1] & ~parts
        self.outputs = outputs & is_steady
        self.left_out = int((outputs & ~is_steady).sum())
        self.output_differs = self.outputs & (after[0][0] != after[1][0])
        self.unknown_input = reference.reads & ~(before[0][1] & before[1][1])
        arguments = [flow.log.tasks["arguments"][flow.tasks] for flow in (reference, other)]
        self.other_arguments: NDArray[np.bool_] = arguments[0] != arguments[1]
        self._after_of_log = [flow.log.hashes_of_accesses(probe_log.AFTER) for flow in (reference, other)]

    def comparison(self, explanation: _Explanation) -> RunComparison:
        """Return the result."""
        allowed = self.output_differs & np.isin(self.reference.task, list(explanation.tolerated))
        differs = self._tasks_with(self.input_differs | self.output_differs)
        differs[list(explanation.tolerated)] = False
        at_the_end = sorted(set(explanation.received_freely) & set(np.flatnonzero(self._is_at_the_end).tolist()))
        return RunComparison(
            outputs=int(self.outputs.sum()) + int(self.inputs[self._is_at_the_end].sum()),
            handles=len(np.unique(self.reference.handle[self.outputs | (self.inputs & self._is_at_the_end)])),
            different=int(self.output_differs.sum()) + int(self.input_differs[self._is_at_the_end].sum()),
            tolerated=int(allowed.sum()) + len(at_the_end),
            tolerated_handles=tuple(np.unique(self.reference.handle[[*np.flatnonzero(allowed), *at_the_end]]).tolist()),
            findings=explanation.findings,
            allowed_before=explanation.received_freely,
            allowed_after=tuple(np.flatnonzero(allowed & ~self._free()).tolist()),
            left_out=self.left_out,
            is_reordered=self.is_reordered,
            unsteady=Unsteady(self.other_arguments, differs),
        )

    @property
    def _is_at_the_end(self) -> NDArray[np.bool_]:
        return self.reference.is_last[self.reference.task]

    def differing_outputs(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the contents in both runs, and the task, of each output that differs."""
        for access in np.flatnonzero(self.output_differs).tolist():
            contents = int(self.reference.after[0][access]), int(self.other.after[0][access])
            yield contents, int(self.reference.task[access])

    def explain(self, schedule: str, elsewhere: _Elsewhere) -> _Explanation:
        """Explain the differences, in the order of submission."""
        has_other_input = self._tasks_with(self.input_differs)
        findings: dict[int, ProgramFinding] = {}  # the first of each task
        free = self._free()
        cause = elsewhere.cause  # of what the application may have handed on so far
        tolerated: set[int] = set()
        received: list[int] = []
        for access in np.flatnonzero(self.input_differs | self.output_differs | free).tolist():
            task = int(self.reference.task[access])
            finding = None
            if free[access]:
                cause = cause or _Cause.FREE
            if self.input_differs[access]:
                origin = self._origin(access)
                if origin is _Origin.HANDED_ON:
                    is_free = self.reference.position(self.reference.writer(access)) in tolerated
                else:
                    is_free, finding = self._received(schedule, access, origin, cause, elsewhere)
                is_new = origin is not _Origin.HANDED_ON or self.reference.is_last[task]
                if is_free and is_new and not free[access]:  # one in the middle of a sum has no value of its own
                    received.append(access)
                if is_free:
                    tolerated.add(task)
            elif self.output_differs[access] and not has_other_input[task]:
                finding = None if self.is_of_kind[task] else self._output(schedule, access, cause)
                if finding is None and (cause is _Cause.FREE or self.is_of_kind[task]):
                    tolerated.add(task)
            if finding is not None and task not in findings:
                findings[task] = finding
                cause = _Cause.FAULT
        return _Explanation(tuple(findings.values()), frozenset(tolerated), tuple(received), bool(free.any()))

    def _received(
        self, schedule: str, access: int, origin: _Origin, cause: _Cause | None, elsewhere: _Elsewhere
    ) -> tuple[bool, ProgramFinding | None]:
        """Return whether an input that no task handed on differs because of a free order, and else what to report."""
        if origin is _Origin.FREE:
            return True, None
        if self.reference.is_last[self.reference.task[access]] and origin is not _Origin.ORDERED_SUM:
            return False, None  # the application may have changed its own data
        if origin is not _Origin.NOBODY:
            contents = int(self.reference.before[0][access]), int(self.other.before[0][access])
            if contents in elsewhere.received:
                return elsewhere.received[contents], None
            if cause is not None:
                return cause is _Cause.FREE, None
        return False, self._input(schedule, access, origin)

    def _free(self) -> NDArray[np.bool_]:
        flow = self.reference
        is_sum = ((flow.mode & probe_log.MODE_REDUX) != 0) & ~flow.is_ordered_sum[flow.accesses]
        result: NDArray[np.bool_] = (flow.is_free | is_sum) & (not self.is_same_order)
        return result

    def _tasks_with(self, accesses: NDArray[np.bool_]) -> NDArray[np.bool_]:
        marked = np.zeros(self.reference.num_tasks, bool)
        marked[self.reference.task[accesses]] = True
        return marked

    def _output(self, schedule: str, access: int, cause: _Cause | None) -> ProgramFinding | None:
        """Return what to report of an output that differs although no input is seen to differ."""
        task = int(self.other.task[access])
        unknown = bool(self.unknown_input[self.reference.first[task] : self.reference.first[task + 1]].any())
        has_meaning = self.other_arguments[task] and not self.unsteady.arguments[task]
        if not unknown and not has_meaning:
            flows = self.reference, self.other
            there, here = (flow.log.of_tasks("implementation", probe_log.START)[flow.tasks[task]] for flow in flows)
            sentence = "reads data that it doesn't declare"
            if here != there:
                first = probe_log.ON_DEVICE
                names = [f"{n % first} for {'devices' if n >= first else 'CPUs'}" for n in (here, there)]
                sentence = f"gives other results by its implementation {names[0]} than by {names[1]}"
            return finding_of(
                Fault.OUTPUT_DIFFERS,
                schedule,
                self.other,
                access,
                sentence,
                evidence="other contents than in the reference schedule, from equal inputs",
                suspects=self._beside(task).tolist(),
            )
        if cause is not None:
            return None
        why = "one of its inputs can't be read" if unknown else "the application gave it other arguments"
        sentence = "leaves other contents than in the reference schedule"
        return finding_of(Fault.INPUT_FROM_OUTSIDE, schedule, self.other, access, sentence, evidence=why)

    def _beside(self, task: int) -> NDArray[np.int64]:
        """Return the tasks that ran on the other side of this one than in the reference schedule, or beside it."""
        one, two = self.reference, self.other
        earlier = (one.end_ns <= one.start_ns[task]) & (two.end_ns <= two.start_ns[task])
        later = (one.start_ns >= one.end_ns[task]) & (two.start_ns >= two.end_ns[task])
        ran = (one.start_ns >= 0) & (two.start_ns >= 0)
        ran[task] = False
        return np.flatnonzero(ran & ~earlier & ~later)

    def _origin(self, access: int) -> _Origin:
        """Return where the difference of an input comes from."""
        sources = [int(flow.source[access]) for flow in (self.reference, self.other)]
        flows = (self.reference, self.other)
        is_free = not self.is_same_order
        if self.reference.has_no_order[access] and is_free:
            return _Origin.FREE
        if is_free and any(source >= 0 and flow.commutes[source] for flow, source in zip(flows, sources, strict=True)):
            return _Origin.FREE
        if min(sources) < 0:
            return _Origin.OUTSIDE
        if self.reference.is_ordered_sum[sources[0]]:
            return _Origin.ORDERED_SUM
        values = []
        for (hashes, known), source in zip(self._after_of_log, sources, strict=True):
            if not known[source]:
                return _Origin.FREE if is_free else _Origin.ORDERED_SUM
            values.append(hashes[source])
        if values[0] != values[1]:
            is_starpus_sum = self.reference.position(self.reference.writer(access)) is None and not is_free
            return _Origin.ORDERED_SUM if is_starpus_sum else _Origin.HANDED_ON
        return _Origin.APPLICATION if self._application_may_have_written(access) else _Origin.NOBODY

    def _input(self, schedule: str, access: int, origin: _Origin) -> ProgramFinding:
        kind, sentence = Fault.INPUT_FROM_OUTSIDE, "finds other contents than in the reference schedule"
        if origin is _Origin.OUTSIDE:
            evidence = "no task of its process has written it"
            return finding_of(kind, schedule, self.other, access, sentence, evidence=evidence)
        if origin is _Origin.ORDERED_SUM:
            evidence = "all tasks that add to it have equal inputs: one of them reads data that it doesn't declare"
            return finding_of(kind, schedule, self.other, access, sentence, evidence=evidence)
        writer, reader = self.other.writer(access), int(self.other.task[access])
        changed_by = "the application, a message, or a task that doesn't declare it has changed it"
        if origin is _Origin.NOBODY:
            kind, changed_by = Fault.INPUT_CHANGED, "a task that doesn't declare it has changed it"
        suspects = ran_between(self.other, writer, reader).tolist()
        evidence = f"its last declared writer left the same; {changed_by}"
        return finding_of(kind, schedule, self.other, access, sentence, evidence=evidence, suspects=suspects)

    def _application_may_have_written(self, access: int) -> bool:
        log = self.other.log
        writer = self.other.writer(access)
        reader = int(self.other.tasks[self.other.task[access]])
        submitted = int(log.tasks["submit_ns"][reader])
        acquired = (log.tasks["flags"][writer:reader] & probe_log.ACQUIRE) != 0
        ended = int(log.times(probe_log.END)[writer])
        is_by_it = int(log.tasks["submitter"][reader]) == writer + 1
        return bool(acquired.any()) or ended < 0 or (submitted >= ended and not is_by_it)
