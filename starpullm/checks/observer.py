"""What checks need of a trainer beyond its users' API: held tasks, StarPU's own graph, the findings of instruments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.binding import prototypes, structs
from starpullm.trace import HandleInfo, read_local_trace
from starpullm.trainer import Trainer


class FindingKind(IntEnum):
    """What an instrument found; its ``count`` is a number of pages, for the last two kinds of elements."""

    UNDECLARED_READ = 1
    UNDECLARED_WRITE = 2
    READ_NEVER_HAPPENED = 3
    WRITE_NEVER_HAPPENED = 4
    NOT_WRITTEN = 5
    POISON_SPREAD = 6


@dataclass(frozen=True, slots=True)
class InstrumentFinding:
    """What an instrument found about one task and one handle.

    ``task`` is the task's number in the trace, or None if the access was made outside of tasks. ``offset`` is the first
    place in bytes from the start of the buffer, and ``count`` the number of pages or elements. Both are 0 for an access
    that never happened.
    """

    task: int | None
    handle: HandleInfo
    kind: FindingKind
    offset: int
    count: int


class Observer:
    """Observes a trainer that was created with ``trace``; ``Trainer.clear_trace`` also discards its findings."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def hold(self) -> None:
        """Wait for all submitted tasks, and hold back the tasks of the next ``steps_in_flight`` iterations.

        No task runs before ``release``: until then what would wait for one raises `StateError`, as does this call of a
        trainer that has no trace, has several ranks or the instruments ``audit`` or ``poison``, or holds tasks already.
        """
        prototypes.call("session_hold", self._trainer._handle)

    def release(self) -> NDArray[np.int64]:
        """Ask StarPU which of the held tasks wait for which, release them, and return StarPU's answer.

        It is (E, 2): the id in the trace of a task, and of a task that waits for it. Ids below 0 are tasks that StarPU
        created itself. `StateError` is raised if no tasks are held.
        """
        return prototypes.release(self._trainer._handle)

    def counts(self) -> Any:
        """Wait for all submitted tasks and return what the instruments have looked at since the last ``clear_trace``.

        Its ``pages`` are the tasks' first reads of a page and first writes to one, as the audit saw them. The others
        count elements: ``poisoned`` those of what tasks declare to write that held the NaN before the task,
        ``poisoned_between`` those of buffers between submissions, ``searched`` those that were searched for it after a
        task. A `StateError` is raised if the trainer has no instruments.
        """
        (counts,) = prototypes.results("session_instrument_counts", self._trainer._handle)
        return counts

    def findings(self) -> list[InstrumentFinding]:
        """Wait for all submitted tasks and return what the instruments found since the last ``clear_trace``.

        A `StateError` is raised if the trainer has no instruments.
        """
        session = self._trainer._handle
        table = np.empty(prototypes.results("session_findings_size", session), structs.FINDING)
        prototypes.call("session_findings_read", session, table, len(table))
        handles = read_local_trace(session).handles
        return [
            InstrumentFinding(None if task < 0 else task, handles[handle], FindingKind(kind), offset, count)
            for task, handle, kind, offset, count in table.tolist()
        ]
