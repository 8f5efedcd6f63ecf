"""One run of a probe again, in the foreground, with this process's input and output: for a debugger or another tool."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from starpullm.errors import InvalidArgumentError
from starpullm.probe import probe_schedules
from starpullm.probe.diagnose_missing_log import index_of_program
from starpullm.probe.probe_schedules import ProbeSchedule, number_of_devices, waiting
from starpullm.probe.program import find_program, without_random_addresses
from starpullm.probe.recorded import calibrate

_PERTURBED = re.compile(r"seed (\d+), (\d+) workers?, (\d+) us")
_WAITING = re.compile(r"reference schedule, task (\d+) waits for task (\d+)")


def schedule_of(words: str) -> ProbeSchedule:
    """Return the schedule that a probe calls so, where it says how to run it again."""
    known = {one.name: one for one in probe_schedules.STANDARD}
    if words in known:
        return known[words]
    if found := _WAITING.fullmatch(words):
        return waiting([int(found[1])], int(found[2]))
    found = _PERTURBED.fullmatch(words)
    if found is None:
        raise InvalidArgumentError(
            f"schedule: found {words!r}, expected what a probe names after --replay, such as “seed 1, 4 workers, 5000 "
            f"us”, or one of {', '.join(known)}"
        )
    seed, workers, delay_us = map(int, found.groups())
    return ProbeSchedule(words, seed, workers, delay_us)


def replay_program(
    command: Sequence[str],
    words: str,
    *,
    workers: int,
    sums: str = "free",
    devices: int | str = 0,
    wrapper: Sequence[str] = (),
) -> int:
    """Run a program once in a schedule, by the words that a probe has for it, and return its exit status.

    ``wrapper`` is a command that is put before the program, behind a launcher of ranks. What is recorded is removed.
    """
    schedule = replace(schedule_of(words), ordered=sums == "ordered", devices=number_of_devices(devices))
    directories = index_of_program(command)
    whole = [*command[:directories], *wrapper, *command[directories:]]
    whole[0] = find_program(whole[0])
    with tempfile.TemporaryDirectory(prefix="starpullm-probe-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory) / "run"
        folder.mkdir()
        environment = schedule.environment(folder, workers)
        calibrate(command, environment)
        try:
            with without_random_addresses():
                process = subprocess.Popen(whole, env={**os.environ, **environment}, close_fds=False)
        except OSError as error:
            raise InvalidArgumentError(f"{whole[0]}: can't be started: {error.strerror}") from error
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # it is the debugger's
