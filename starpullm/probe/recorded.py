"""One run of the program under a schedule: how it ended, and what each of its processes recorded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.errors import InvalidArgumentError
from starpullm.files import probe_log
from starpullm.files.probe_log import read_probe_log
from starpullm.probe.diagnose_missing_log import explain_missing_log, launcher_of, program_of, starpu_in, starpu_of
from starpullm.probe.findings import Fault, ProgramFinding, task_finding
from starpullm.probe.probe_schedules import REPEATED, ProbeSchedule
from starpullm.probe.program import ProgramEnding, run_program
from starpullm.probe.program_tasks import TaskFlow, flow_of, listed
from starpullm.processes.endings import signal_name

_CALIBRATION = """
import ctypes, sys

starpu = ctypes.CDLL(sys.argv[1])
starpu.starpu_init(None)
starpu.starpu_shutdown()
"""
_CALIBRATION_SECONDS = 60.0
_LISTED, _LAST_LINES = 8, 10
"""Tasks of a process, and lines of its standard error, that are told of a run that didn't end by itself."""


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A schedule, the program's ending, and the task flow of each rank; of a program without ranks, that of -1."""

    schedule: ProbeSchedule
    ending: ProgramEnding
    flows: Mapping[int, TaskFlow]
    num_workers: int
    """The fewest of a process."""
    surroundings: tuple[str, ...]

    @property
    def num_tasks(self) -> int:
        """The tasks of all ranks."""
        return sum(flow.num_submitted for flow in self.flows.values())

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks of the job that recorded nothing."""
        num_ranks = max(int(flow.log.header["num_ranks"]) for flow in self.flows.values())
        return sorted(set(range(num_ranks)) - set(self.flows))

    @property
    def is_complete(self) -> bool:
        """Whether the program ran to its end, with whatever exit status; a launcher gives a status to a crash too."""
        if self.ending.status is None or self.ending.status < 0 or self.missing_ranks:
            return False
        if self.ending.status == 0 or -1 in self.flows:
            return True
        return all(flow.log.header["ended"] == probe_log.ENDED_BY_ITSELF for flow in self.flows.values())


def record(
    command: Sequence[str],
    schedule: ProbeSchedule,
    folder: Path,
    num_workers: int,
    time_limit: float,
    keep: str = "",
    temporary: Sequence[Path] = (),
) -> RecordedRun:
    """Run the program under a schedule, and read what it recorded into the folder, which is made.

    ``keep`` is that of `ProbeSchedule.environment`. If this process is killed meanwhile, the program is killed, and
    ``temporary`` folders are removed. The ends of the program's output come into the folder, too.
    """
    folder.mkdir()
    environment = schedule.environment(folder, num_workers, keep)
    calibrate(command, environment)
    ending = run_program(command, environment, time_limit, folder, temporary)
    for name in ("stdout", "stderr"):
        (folder / name).write_text(getattr(ending, name), "utf-8")
    folders, starpu = sorted(folder.glob("probe-*")), starpu_in(folder)
    if not folders or starpu is None:
        raise InvalidArgumentError(explain_missing_log(command, ending, folder, environment))
    flows: dict[int, TaskFlow] = {}
    for path in folders:
        log = read_probe_log(path)
        if log.header["write_error"]:
            reason = os.strerror(int(log.header["write_error"]))
            raise InvalidArgumentError(
                f"{path}: the log ends after {len(log.tasks)} tasks, because it couldn't be written: "
                f"{reason}, expected room for all of it (TMPDIR names another place)"
            )
        rank = int(log.header["rank"])
        if rank in flows:
            raise InvalidArgumentError(
                f"{program_of(command)}: found {len(folders)} processes that started StarPU, expected one, or one "
                "for each rank of an MPI job"
            )
        flows[rank] = flow_of(log)
    surroundings = tuple(starpu.surroundings({**os.environ, **environment}, ending.stderr))
    run = RecordedRun(schedule, ending, dict(sorted(flows.items())), starpu.num_workers, surroundings)
    if run.missing_ranks and ending.status == 0:
        ranks = ", ".join(map(str, run.missing_ranks))
        raise InvalidArgumentError(
            f"{program_of(command)}: found logs of {len(flows)} ranks and none of {ranks}, expected one of each rank: "
            "all of them have to start StarPU, on this machine"
        )
    return run


def calibrate(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Before ranks start the first time, have their StarPU measure the machine and write that to its files.

    Ranks that do so together may fail: one opens a file that another hasn't written yet (`check_bus_config_file`).
    """
    if Path(environment["STARPU_PERF_MODEL_DIR"]).exists() or not launcher_of(command):
        return
    starpu = starpu_of(program_of(command))
    variables = {name: value for name, value in environment.items() if not name.startswith("STARPU_SCHED")}
    if starpu:
        with suppress(subprocess.TimeoutExpired):  # the ranks do it then
            subprocess.run(
                [sys.executable, "-c", _CALIBRATION, starpu],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CALIBRATION_SECONDS,
                check=False,
            )


def ending_finding(run: RecordedRun, reference: RecordedRun, expected: Container[int]) -> ProgramFinding | None:
    """Return what to report of a run's ending; None if it ended with an expected status."""
    if run.ending.status is not None and run.ending.status in expected:
        return None
    evidence = {} if run is reference else {"reference schedule": f"the program {reference.ending}"}
    kind = Fault.POISONED_ENDING if run.schedule.poison else Fault.ENDING
    if run.schedule is REPEATED and run.is_complete:
        kind = Fault.CHANGING_INPUT
    sentence, name = describe_ending(run), run.schedule.name
    for flow in run.flows.values() if run.schedule.poison else ():
        for task in running_tasks(flow).tolist():  # it is likely the one that reads poison
            return task_finding(kind, name, flow, task, sentence, **evidence)
    return ProgramFinding(sentence, evidence, kind=kind, schedule=name)


def describe_ending(run: RecordedRun) -> str:
    """Return how the program ended, and which ranks had a part in it."""
    text = f"the program {run.ending}"
    ranks = {rank: flow for rank, flow in run.flows.items() if rank >= 0}
    if not ranks or run.ending.status == 0:
        return text
    parts = list(_where_ranks_were(ranks) if run.ending.status is None else _culprits(run, ranks))
    parts += [f"rank {rank} hadn't started StarPU" for rank in run.missing_ranks]
    return f"{text}: {', '.join(parts)}" if parts else text


def _where_ranks_were(ranks: Mapping[int, TaskFlow]) -> Iterator[str]:
    for rank, flow in ranks.items():
        tasks = running_tasks(flow)
        if len(tasks):
            yield f"rank {rank} was running {_names(flow, tasks)}"
        elif int(flow.log.header["ended"]) == 0:
            yield f"rank {rank} was running no task"


def _culprits(run: RecordedRun, ranks: Mapping[int, TaskFlow]) -> Iterator[str]:
    """Yield the ranks that ended by a fault, the first one first; those that the launcher then ended are left out."""
    places = {pid: place for place, pids in enumerate(run.ending.ended) for pid in pids}
    order = {rank: places.get(int(flow.log.header["pid"]), len(places)) for rank, flow in ranks.items()}
    faults = {rank: fault for rank, flow in ranks.items() if (fault := _fault(flow))}
    silent = {rank: order[rank] for rank, flow in ranks.items() if int(flow.log.header["ended"]) == 0}
    first_fault = min((order[rank] for rank in faults), default=len(places))
    for rank in _killed(run, silent, first_fault, has_faults=bool(faults)):
        yield f"rank {rank} was killed, or left without exit()"
    for rank in sorted(faults, key=lambda rank: order[rank]):
        yield f"rank {rank} {faults[rank]}"


def _killed(run: RecordedRun, silent: Mapping[int, int], first_fault: int, *, has_faults: bool) -> list[int]:
    """Return the ranks that ended first, without leaving a word as one that was killed; not those that were ended then.

    ``silent`` has the ranks that left nothing, with their places in the order of endings. Open MPI's mpirun names the
    one that was killed; otherwise it is the one that ended first.
    """
    named = re.search(r"process rank (\d+)\b[^\n]*exited on signal", run.ending.stderr)
    first = min(silent.values(), default=first_fault)
    is_first = first < first_fault and not run.missing_ranks
    if not is_first and (named is None or has_faults):
        return []
    if named is not None and int(named[1]) in silent:
        return [int(named[1])]
    return [rank for rank, place in silent.items() if place == first]


def _fault(flow: TaskFlow) -> str:
    """Return how a process ended, if that is a fault and it could say so."""
    header = flow.log.header
    if header["ended"] == probe_log.ENDED_BY_SIGNAL:
        return f"was ended by {signal_name(int(header['signal']))}"
    if header["ended"] == probe_log.ENDED_BY_ITSELF and header["exit_status"] != 0:
        return f"ended with exit status {header['exit_status']}"
    return ""


def running_tasks(flow: TaskFlow) -> NDArray[np.int64]:
    """Return the tasks that had started and not ended."""
    return np.flatnonzero((flow.start_ns >= 0) & (flow.end_ns < 0) & flow.has_function)


def last_moments(run: RecordedRun) -> Iterator[str]:
    """Yield lines about a run that didn't end by itself: each process's tasks, and what it said; then the stacks."""
    for rank, flow in run.flows.items():
        name = f"rank {rank}, {run.schedule.name}" if rank >= 0 else run.schedule.name
        yield from (f"{name}: {line}" for line in _last_moments_of(flow))
    yield from (f"standard error: {line}" for line in run.ending.stderr.splitlines()[-_LAST_LINES:])
    ranks = {int(flow.log.header["pid"]): f"rank {rank}, " for rank, flow in run.flows.items() if rank >= 0}
    for pid, stack in run.ending.stacks.items():
        yield from (f"{ranks.get(pid, '')}stack: {line}" for line in stack.splitlines())


def _last_moments_of(flow: TaskFlow) -> Iterator[str]:
    """Yield lines about a process: tasks that had run, were running or ready, and its stack."""
    ready = np.flatnonzero((flow.ready_ns >= 0) & (flow.start_ns < 0))
    yield f"{int((flow.end_ns >= 0).sum())} of {flow.num_submitted} submitted tasks had ended"
    yield f"running: {_names(flow, running_tasks(flow))}"
    yield f"ready: {_names(flow, ready)}"
    if flow.log.header["ended"] == probe_log.ENDED_BY_SIGNAL:
        number = int(flow.log.header["signal_task"])
        position = flow.position(number - 1) if number else None
        yield f"the signal came {'not in a task' if position is None else f'in {flow.name(position)}'}; the stack:"
        yield from (f"  {frame}" for frame in flow.log.stack.splitlines())


def _names(flow: TaskFlow, tasks: NDArray[np.int64]) -> str:
    return listed([flow.name(task) for task in tasks.tolist()], _LISTED) or "none"
