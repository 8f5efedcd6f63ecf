"""The schedules in which a program is run, and the environment variables that bring them about."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from starpullm.binding.library import find_probe
from starpullm.errors import InvalidArgumentError
from starpullm.machine import machine_in_child

_SETTLE_MS = 1500
"""All waits for the program to submit more, together."""

_VARIABLES_BYTES = 1 << 14

PROMPT_MS = 10_000
"""All waits of submissions for their tasks, together."""

KEEP_FROM_FREE = "free"
"""Contents of all tasks from the first one with an access whose order is free."""


class PoisonMode(IntEnum):
    """What is put where a task declares to overwrite; as `enum poison_mode` of native/probe/settings.h."""

    NONE = 0
    NAN = 1
    LARGE = 2  # large numbers and zeros in turn


@dataclass(frozen=True)
class ProbeSchedule:
    """How one run chooses among ready tasks; a user says its name to run it again.

    ``seed`` 0 takes them in the order of submission, any other number in an order that follows from it. At most
    ``max_workers`` tasks run at a time; ``in_turn`` it is one task at a time, but each on another worker. Every fourth
    task is delayed, with seed 0 every one, by up to ``delay_us`` microseconds. What a task declares as written only is
    filled with ``poison`` before. If ``watched``, contents aren't looked at, but accesses that tasks don't declare.
    Tasks that are ``held`` wait until the task ``until`` starts. Sums, whose order is free by their access modes, are
    ``ordered`` as they were submitted. If it is ``prompt``, a thread that submits a ready task waits until it has run,
    in all `PROMPT_MS`; otherwise submitted tasks pile up. A perturbed schedule draws which tasks run on OpenCL's
    ``devices``; in others only those do that no CPU can run.
    """

    name: str
    seed: int = 0
    max_workers: int = 1
    delay_us: int = 0
    poison: PoisonMode = PoisonMode.NONE
    watched: bool = False
    held: tuple[int, ...] = ()
    until: int = 0
    ordered: bool = False
    prompt: bool = False
    in_turn: bool = False
    devices: int = 0
    other_poison: int = 0
    """An access of the task whose contents are kept, by number plus one, that gets the other kind of poison."""

    @property
    def folder(self) -> str:
        """Of a run's records."""
        return self.name.replace(",", "").replace(" ", "-")

    def environment(self, folder: Path, num_workers: int, keep: str = "") -> dict[str, str]:
        """Return the variables for a run that records into a folder, on a StarPU with so many workers.

        ``keep`` says whose contents are recorded, not only hashed: `KEEP_FROM_FREE`, or the number of one task.
        """
        variables = (
            machine_variables(num_workers, self.devices)
            | _memory_variables()
            | {
                # Open MPI's ranks on one machine then don't read each other's memory by a system call, which protected
                # pages would let fail.
                "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                # What the first call of a function would leave on the stack, where later calls leave nothing.
                "LD_BIND_NOW": "1",
                # StarPU calibrates the workers that it is told to have, which aren't those of the user's machine.
                "STARPU_HOME": str(folder.parent),
                "STARPU_PERF_MODEL_DIR": str(folder.parent / "models"),
                "STARPU_DISABLE_KERNELS": "0",
                "STARPU_SILENT": "0",  # its warnings are told
                "STARPU_SCHED": "probe",
                "STARPU_SCHED_LIB": str(find_probe()),
                "STARPU_PROF_TOOL": str(find_probe()),
                "STARPULLM_PROBE_DIRECTORY": str(folder),
                "STARPULLM_PROBE_SEED": str(self.seed),
                "STARPULLM_PROBE_MAX_WORKERS": str(self.max_workers),
                "STARPULLM_PROBE_IN_TURN": str(int(self.in_turn)),
                "STARPULLM_PROBE_DELAY_US": str(self.delay_us),
                "STARPULLM_PROBE_SETTLE_MS": str(0 if self.prompt else _SETTLE_MS),
                "STARPULLM_PROBE_PROMPT_MS": str(PROMPT_MS * self.prompt),
                "STARPULLM_PROBE_ORDERED": str(int(self.ordered)),
                "STARPULLM_PROBE_HELD": ",".join(map(str, self.held)),
                "STARPULLM_PROBE_UNTIL": str(self.until),
                "STARPULLM_PROBE_HASH": str(int(not self.watched)),
                "STARPULLM_PROBE_STACKS": str(int(self.name == REFERENCE.name)),
                "STARPULLM_PROBE_WATCH": str(int(self.watched)),
                "STARPULLM_PROBE_POISON": str(int(self.poison)),
                "STARPULLM_PROBE_OTHER_POISON": str(self.other_poison),
                "STARPULLM_PROBE_CONTENTS": keep,
            }
        )
        size = sum(len(name) + len(value) for name, value in variables.items())
        # Variables lie above the stack: addresses in it are the same in all runs.
        return variables | {"STARPULLM_PROBE_PADDING": "-" * (_VARIABLES_BYTES - size)}


def number_of_devices(asked: int | str) -> int:
    """Return how many OpenCL devices are asked for, by number or as ``"all"``, if StarPU finds so many."""
    found = 0 if str(asked) == "0" else len(machine_in_child()["devices"])
    numbers = {str(number): number for number in range(found + 1)} | ({"all": found} if found else {})
    if str(asked) not in numbers:
        raise InvalidArgumentError(f"devices: found {found}, expected {asked}; starpullm doctor lists them")
    return numbers[str(asked)]


def machine_variables(num_workers: int, num_devices: int = 0) -> dict[str, str]:
    """Return the variables that give StarPU so many CPU workers, also on a machine with fewer cores.

    A device takes a core of its own, and runs one task at a time: the next one would start before it is looked at.
    """
    num_cores = num_workers + num_devices
    variables = {
        "STARPU_NCPU": str(num_workers),
        "STARPU_NCUDA": "0",
        "STARPU_NHIP": "0",
        "STARPU_NOPENCL": str(num_devices),
        "STARPU_OPENCL_PIPELINE": "0",
        "STARPU_RESERVE_NCPU": "0",
        "STARPU_MAIN_THREAD_BIND": "0",
        "STARPU_WORKERS_NOBIND": "1",
        "STARPU_MPI_NOBIND": "1",
    }
    if "HWLOC_SYNTHETIC" not in os.environ and (os.cpu_count() or 1) < num_cores:
        # With a package, as real machines have one: parallel workers are made by package.
        variables["HWLOC_SYNTHETIC"] = f"package:1 core:{num_cores} pu:1"
    return variables


def _memory_variables() -> dict[str, str]:
    """Return the variables with which glibc clears what it allocates: memory that nobody wrote is then always the same.

    It does so only without the lists of each thread, in which it keeps freed memory.
    """
    if "MALLOC_PERTURB_" in os.environ:
        return {}
    tunables = [os.environ.get("GLIBC_TUNABLES", ""), "glibc.malloc.perturb=255", "glibc.malloc.tcache_count=0"]
    return {"GLIBC_TUNABLES": ":".join(filter(None, tunables))}


REFERENCE = ProbeSchedule("reference schedule")
WATCHED = ProbeSchedule("reference schedule, watched", watched=True)
REPEATED = ProbeSchedule("reference schedule, again")
POISONED = (
    ProbeSchedule("reference schedule with poison", poison=PoisonMode.NAN),
    ProbeSchedule("reference schedule with other poison", poison=PoisonMode.LARGE),
)
"""They differ where something is used that a task declares to overwrite, or has left as it was."""

PROMPT = ProbeSchedule("reference schedule, tasks at once", prompt=True)
"""It differs where the application uses data that it has neither acquired nor waited for."""

STANDARD = (REFERENCE, WATCHED, REPEATED, PROMPT, *POISONED)

LONGER = ProbeSchedule("reference schedule, longer")
IN_TURN = ProbeSchedule("reference schedule, longer, on all workers in turn", in_turn=True)
"""They get a delay. What the program prints differs if it says how long tasks take, or which worker runs one."""

NOT_ALWAYS = (REPEATED, LONGER, IN_TURN)
"""Schedules that not every probe has."""


def waiting(held: Iterable[int], until: int) -> ProbeSchedule:
    """Return the reference schedule, but for tasks, by number, that wait until another one starts."""
    tasks = tuple(map(int, held))
    name = f"reference schedule, task {', '.join(map(str, tasks))} waits for task {until}"
    return ProbeSchedule(name, held=tasks, until=until)


def perturbed(runs: int, seed: int, num_workers: int, delay_us: int) -> Sequence[ProbeSchedule]:
    """Return schedules with consecutive seeds; every third one runs one task at a time, the others up to all.

    Delays of tasks one at a time add up, so they are shorter there.
    """
    schedules = []
    for number in range(runs):
        workers = 1 if number % 3 == 2 else num_workers
        delay = delay_us * workers // num_workers
        name = f"seed {seed + number}, {workers} worker{'s' * (workers > 1)}, {delay} us"
        schedules.append(ProbeSchedule(name, seed + number, workers, delay))
    return schedules
