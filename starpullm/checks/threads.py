"""What the library says of the machine and of its threads, also of those of ranks, compared with what Linux says."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from starpullm.binding import header, prototypes
from starpullm.checks.cases import Asked, Case
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.place import Workplace, bound_to, captured_output, environment
from starpullm.checks.result import Result
from starpullm.checks.statements import Statements
from starpullm.machine import machine_info, own_cores
from starpullm.runtime import Partition, Runtime

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_MOST_CORES = 1024
"""Cores that the library counts."""


class _Threads(Check):
    """What is asked is the same for every record, so there is one case."""

    family, unit = "interface", "statements"

    def cases(self, asked: Asked, ranks: int) -> Iterator[Case]:
        """Yield the one case."""
        del asked, ranks
        yield Case()


@check
class MachineAndThreads(_Threads):
    """Ask for topologies that are known, for this machine's own, and for the places of threads, in a fresh process."""

    claim = "what the library says of the machine and its threads is true, and a runtime leaves the process as it was"
    fault = "the library says something untrue of machine or threads, or changes the process"
    cannot_see = "topologies of machines that this one isn't, but for synthetic ones"
    needs = Needs(Where.ALONE, ranks=(1, 1))

    def run(self, place: object, case: Case) -> Result:
        """Start many runtimes in a process that has none."""
        del place, case
        statements = Statements()
        signals = _caught_signals()
        statements.equal("ABI version", header.abi_version(), prototypes.call("abi_version"))
        _check_synthetic(statements)
        with environment(HWLOC_SYNTHETIC=None):
            _check_processor(statements)
            _check_bound_threads(statements)
            _check_guest(statements, signals)
        _check_cores_of_two_units(statements)
        _check_unbound_threads(statements)
        return self.result(compared=statements.compared, findings=statements.wrong)


def _check_synthetic(statements: Statements) -> None:
    for topology, cores, units, nodes in (
        ("numa:2 core:3 pu:2", 6, 12, 2),
        ("numa:1 core:4 pu:1", 4, 4, 1),
        ("pack:2 core:2 pu:4", 4, 16, 1),
        (f"numa:1 core:{_MOST_CORES + 1} pu:1", _MOST_CORES, _MOST_CORES + 1, 1),
    ):
        with environment(HWLOC_SYNTHETIC=topology):
            info = machine_info()
        found = [info.cores, info.processing_units, info.numa_nodes, info.synthetic]
        statements.equal(f"cores, units, nodes and synthetic of {topology}", [cores, units, nodes, 1], found)
        statements.equal(f"processor of {topology}", "", prototypes.text(info.processor))


def _check_processor(statements: Statements) -> None:
    info = machine_info()
    statements.equal("this machine is synthetic", 0, info.synthetic)
    statements.equal("cores that this process may use", len(own_cores()), info.cores)
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if names and os.uname().machine == "x86_64":
        statements.equal("processor", names[0], prototypes.text(info.processor))


def _check_bound_threads(statements: Statements) -> None:
    """Each worker has a unit of its own, which is the one that Linux says its thread may use."""
    workers = min(len(own_cores()), 2)
    partitions = [f"{workers}x1", *([f"1x{workers}"] if machine_info().starpu_parallel_workers else [])]
    for partition in partitions:
        with Runtime(partition) as runtime:
            places = runtime.threads()
            allowed = _single_units_of_threads()
        expected = [(number, 0) if partition.endswith("x1") else (0, number) for number in range(workers)]
        statements.equal(f"workers and threads of {partition}", expected, [tuple(place[:2]) for place in places])
        statements.equal(f"units of each thread of {partition}", [1] * workers, [place.num_units for place in places])
        units = {place.first_unit for place in places}
        statements.equal(f"threads of {partition} with a unit of their own", workers, len(units))
        statements.equal(f"units that Linux has bound no thread of {partition} to", set(), units - allowed)


def _single_units_of_threads() -> set[int]:
    """Return the units that a thread of this process is bound to alone."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended
            units = os.sched_getaffinity(int(task.name))
            found |= units if len(units) == 1 else set()
    return found


def cores_of_two_units(units: Collection[int]) -> dict[str, str]:
    """Return the environment of a topology in which each of these units is the first of a core's two.

    Threads are bound, although hwloc reads the topology from the environment. So a program that confuses numbers of
    cores with numbers of units binds to the second units, which this process may not use, also on a machine whose cores
    have one unit each.
    """
    numbers = [number for other, unit in enumerate(units, max(units) + 1) for number in (unit, other)]
    cores = f"numa:1 core:{len(units)} pu:2(indexes={','.join(map(str, numbers))})"
    return {"HWLOC_SYNTHETIC": cores, "HWLOC_THISSYSTEM": "1"}


def _check_cores_of_two_units(statements: Statements) -> None:
    units = sorted(os.sched_getaffinity(0))[:2]
    with environment(**cores_of_two_units(units)):
        info = machine_info()
        found = [info.cores, info.processing_units, info.synthetic]
        statements.equal("cores, units and synthetic with two units in a core", [len(units), 2 * len(units), 0], found)
        with Runtime(f"{len(units)}x1") as runtime:
            places = [tuple(place[2:]) for place in runtime.threads()]
    statements.equal("units of threads on cores of two units", [(unit, 1) for unit in units], sorted(places))


def _check_guest(statements: Statements, signals: list[int]) -> None:
    """State that a runtime writes nothing, catches no signal and leaves the variables of the environment alone.

    The process is bound to one unit, of which StarPU would warn; it does so if the user asks for it. `signals` are
    those that the process caught before its first runtime.
    """
    environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
    unit = max(os.sched_getaffinity(0))
    for silent in (None, "0"):
        with environment(STARPU_SILENT=silent), bound_to({unit}):
            statements.equal("cores of a process that is bound to one unit", 1, machine_info().cores)
            before = signals, _variables(), environ.value
            with captured_output() as written:
                with Runtime("1x1") as runtime:
                    places = [tuple(place[2:]) for place in runtime.threads()]
                    during = _caught_signals(), _variables(), environ.value
                text = written()
        statements.equal(f"the thread's unit with STARPU_SILENT {silent}", [(unit, 1)], places)
        for what, expected, found in zip(("caught signals", "variables", "environ"), before, during, strict=True):
            statements.equal(f"{what} with STARPU_SILENT {silent}", expected, found)
        if silent is None:
            statements.equal("output of a runtime", "", text)
        else:
            statements.equal("StarPU's warning, which the user has asked for", True, "only one CPU" in text)


def _caught_signals() -> list[int]:
    """Return the signals that this process catches, without those that the C library keeps for its own threads."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return [number for number in sorted(signal.valid_signals()) if caught >> (number - 1) & 1]


def _variables() -> dict[str, bytes | None]:
    """Return the settings of StarPU that C code finds."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    names = ("STARPU_SILENT", "STARPU_WORKERS_NOBIND", "STARPU_MPI_NOBIND", "STARPU_NCPU", "STARPU_SCHED")
    return {name: getenv(name.encode()) for name in names}


def _check_unbound_threads(statements: Statements) -> None:
    """With a synthetic topology threads may run wherever the process may, also if that is its last unit only."""
    before = os.sched_getaffinity(0)
    for units in (before, {max(before)}):
        os.sched_setaffinity(0, units)
        try:
            with environment(HWLOC_SYNTHETIC="numa:1 core:3 pu:1"), Runtime("3x1") as runtime:
                places = [tuple(place) for place in runtime.threads()]
        finally:
            os.sched_setaffinity(0, before)
        expected = [(worker, 0, min(units), len(units)) for worker in range(3)]
        statements.equal(f"threads on units {sorted(units)}", expected, places)


@check
class ThreadsOfRanks(_Threads):
    """Ask where the threads of ranks are: with cores enough for all ranks of this machine, and without."""

    claim = "ranks of one machine have cores of their own if there are enough of them, and else share what there is"
    fault = "threads of ranks are elsewhere than they should be"
    cannot_see = "machines of a cluster that differ"
    needs = Needs(Where.ALONE, ranks=(2, None))

    def run(self, place: Workplace, case: Case) -> Result:  # type: ignore[override]  # a check that is alone
        """Start runtimes on all ranks, with several topologies."""
        del case
        statements, comm = Statements(), place.comm
        cores, units = len(own_cores()), os.sched_getaffinity(0)
        with environment(HWLOC_SYNTHETIC=None):
            for partition in ("1x1", "2x1"):
                if Partition.parse(partition).workers <= cores:
                    _check_threads(statements, comm, partition, cores)
            _check_bound_ranks(statements, comm)
        with environment(HWLOC_SYNTHETIC="numa:1 core:2 pu:1"):
            _check_threads(statements, comm, "2x1", 0)
        with environment(**cores_of_two_units(sorted(units))):
            found = _check_threads(statements, comm, "1x1", len(units))
        statements.equal("units that are not the first of a core's two", set(), found - units)
        return self.result(compared=statements.compared, findings=statements.wrong)


def _check_threads(statements: Statements, comm: Comm | None, partition: str, cores: int) -> set[int]:
    """Compare where the threads are, on a machine with so many cores to bind to; return this rank's first units."""
    node = os.uname().nodename
    with Runtime(partition, comm=comm) as runtime:
        mine = [(place.first_unit, place.num_units) for place in runtime.threads()]
        everyone = comm.allgather((node, mine)) if comm else [(node, mine)]
    here = [threads for where, threads in everyone if where == node]
    whose = f"of {partition} on each of {len(here)} ranks, {cores} cores"
    if cores < sum(map(len, here)):
        units = os.sched_getaffinity(0)
        shared = {(min(units), len(units))}
        statements.equal(f"first unit and number of units {whose}", shared, set(mine))
    else:
        statements.equal(f"numbers of units {whose}", {1}, {count for _, count in mine})
        units_here = [unit for threads in here for unit, _ in threads]
        statements.equal(f"units {whose}", len(units_here), len(set(units_here)))
    return {unit for unit, _ in mine}


def _check_bound_ranks(statements: Statements, comm: Comm | None) -> None:
    """Ranks that mpirun has bound to a unit each stay there, with their threads."""
    units = sorted(os.sched_getaffinity(0))
    own = units[(comm.Get_rank() if comm else 0) % len(units)]
    with bound_to({own}), Runtime("1x1", comm=comm) as runtime:
        mine = [(place.first_unit, place.num_units) for place in runtime.threads()]
    statements.equal(f"unit and number of units of a rank that is bound to unit {own}", [(own, 1)], mine)
