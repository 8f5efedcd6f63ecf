"""One run of the program under a schedule: how it ended, and what each of its processes recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starpullm.errors import InvalidArgumentError
from starpullm.files import probe_log
from starpullm.files.probe_log import read_probe_log
from starpullm.probe.diagnose_missing_log import explain_missing_log, launcher_of, program_of, starpu_in, starpu_of
from starpullm.probe.probe_schedules import ProbeSchedule
from starpullm.probe.program import ProgramEnding, run_program
from starpullm.probe.program_tasks import TaskFlow, flow_of

_CALIBRATION = """
import ctypes, sys

starpu = ctypes.CDLL(sys.argv[1])
starpu.starpu_init(None)
starpu.starpu_shutdown()
"""
_CALIBRATION_SECONDS = 60.0


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
