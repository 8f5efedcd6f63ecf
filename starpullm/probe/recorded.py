"""One run of the program under a schedule: how it ended, and what each of its processes recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.files.probe_log import read_probe_log
from starpullm.probe.flow import Flow, flow_of
from starpullm.probe.linkage import explain_missing_log
from starpullm.probe.program import ProgramEnding, run_program
from starpullm.probe.schedules import Schedule

_LISTED = 8


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A schedule, the program's ending, and the task flow of each rank; a program without MPI has rank 0."""

    schedule: Schedule
    ending: ProgramEnding
    flows: Mapping[int, Flow]

    @property
    def num_tasks(self) -> int:
        """The tasks of all ranks."""
        return sum(flow.num_tasks for flow in self.flows.values())

    def name(self, rank: int) -> str:
        """Return what findings call the schedule."""
        return self.schedule.name if len(self.flows) == 1 else f"rank {rank}, {self.schedule.name}"


def record(
    command: Sequence[str], schedule: Schedule, folder: Path, num_workers: int, time_limit: float
) -> RecordedRun:
    """Run the program under a schedule, and read what it recorded into the folder, which is made.

    If this process is killed meanwhile, the program is killed, and the directory that the folder is in is removed.

    Raises
    ------
    InvalidArgumentError
        If the program can't be started or recorded nothing; the sentence says why.
    """
    folder.mkdir()
    environment = schedule.environment(folder, num_workers, hash_contents=True)
    ending = run_program(command, environment, time_limit, (folder.parent,))
    folders = sorted(folder.glob("probe-*"))
    if not folders:
        raise InvalidArgumentError(explain_missing_log(command, ending, folder))
    flows: dict[int, Flow] = {}
    for path in folders:
        log = read_probe_log(path)
        if log.header["write_error"]:
            reason = os.strerror(int(log.header["write_error"]))
            raise InvalidArgumentError(
                f"{path}: the log ends after {len(log.tasks)} tasks, because it couldn't be written: "
                f"{reason}, expected room for all of it (TMPDIR names another place)"
            )
        rank = max(int(log.header["rank"]), 0)
        if rank in flows:
            raise InvalidArgumentError(
                f"{command[0]}: found {len(folders)} processes that started StarPU, expected one, or one for each rank "
                "of an MPI job"
            )
        flows[rank] = flow_of(log)
    return RecordedRun(schedule, ending, flows)


def last_moments(flow: Flow) -> list[str]:
    """Return lines about a process that didn't end by itself: tasks that had run, were running or ready, its stack."""
    started, ended = flow.start_ns >= 0, flow.end_ns >= 0
    running = np.flatnonzero(started & ~ended & flow.has_function)
    ready = np.flatnonzero((flow.ready_ns >= 0) & ~started)
    lines = [
        f"{int(ended.sum())} of {flow.num_tasks} submitted tasks had ended",
        f"running: {_names(flow, running)}",
        f"ready: {_names(flow, ready)}",
    ]
    stack = flow.log.stack.splitlines()
    if stack:
        number = stack[0].removeprefix("task ")
        position = np.flatnonzero(flow.tasks == int(number)) if number.isdigit() else np.array([], np.int64)
        where = f"in {flow.name(int(position[0]))}" if len(position) else "not in a task"
        lines += [f"the signal came {where}; the stack:", *(f"  {frame}" for frame in stack[1:])]
    return lines


def _names(flow: Flow, tasks: NDArray[np.int64]) -> str:
    names = [flow.name(task) for task in tasks[:_LISTED].tolist()]
    if len(tasks) > _LISTED:
        names.append(f"and {len(tasks) - _LISTED} more")
    return ", ".join(names) or "none"
