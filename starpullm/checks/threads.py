"""What the library says of the machine and of the threads of one process or of ranks, compared with what Linux says."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from starpullm.binding import declarations, prototypes
from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import StandaloneCheck, check
from starpullm.checks.check_context import StandaloneContext, bound_to, captured_output, environment
from starpullm.checks.expectations import Expectations
from starpullm.checks.result import Result
from starpullm.checks.training import checkpoint_in
from starpullm.golden.records import shipped_record
from starpullm.machine import available_cores, machine_info
from starpullm.processes import Comm
from starpullm.runtime import Partition, Runtime
from starpullm.trainer import Trainer

_TINY = shipped_record("tiny")
_MOST_CORES = 1024
"""Cores that the library counts."""


@check
class Threads(StandaloneCheck):
    """Start runtimes on several topologies, and ask where their threads are: on cores enough for all ranks, and not.

    One process also asks for topologies that are known and for this machine's own.
    """

    family, unit = "interface", "statements"
    claim = (
        "the library describes the machine and its threads correctly, ranks of one machine have cores of their own if "
        "there are enough of them, and a runtime leaves the process as it was"
    )
    fault = "the library describes the machine or the threads wrongly, or changes the process"
    cannot_see = "topologies of other machines, except synthetic ones; differences between the machines of a cluster"
    without_cases = "this container doesn't let a process bind and name its threads"

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield the one case: what is asked is the same for every record."""
        if _can_follow_threads():
            yield Case()

    def run(self, context: StandaloneContext, case: Case) -> Result:
        """Start runtimes on all ranks, in processes that have none."""
        expect, comm = Expectations(), context.comm
        version = prototypes.call("abi_version")  # opens the library, and those of MPI, which may catch signals (UCX)
        signals, units = _caught_signals(), os.sched_getaffinity(0)
        if comm is None:
            expect.equal("ABI version", declarations.abi_version(), version)
            _check_synthetic(expect)
        with environment(HWLOC_SYNTHETIC=None):
            cores = len(available_cores())
            if comm is None:
                _check_processor(expect)
            of_two = ("2x1", "1x2") if machine_info().starpu_max_contexts else ("2x1",)
            for partition in ("1x1", *of_two) if cores > 1 else ("1x1",):
                _check_threads(expect, context, partition, cores)
            _check_guest(expect, comm, signals)
        with environment(HWLOC_SYNTHETIC="numa:1 core:3 pu:1"):
            for own in (units, {max(units)}):
                with bound_to(own):
                    _check_threads(expect, context, "3x1", 0)
        first = sorted(units)[: 2 if comm is None else None]
        with environment(**cores_of_two_units(first)):
            found = _check_threads(expect, context, f"{len(first)}x1" if comm is None else "1x1", len(first))
            info = machine_info()
        counted = [info.cores, info.processing_units, info.synthetic]
        expect.equal("cores, units and synthetic with two units in a core", [len(first), 2 * len(first), 0], counted)
        expect.equal("units that are not the first of a core's two", set(), found - set(first))
        return self.result(compared=expect.compared, findings=expect.wrong)


def _check_synthetic(expect: Expectations) -> None:
    for topology, cores, units, nodes in (
        ("numa:2 core:3 pu:2", 6, 12, 2),
        ("numa:1 core:4 pu:1", 4, 4, 1),
        ("pack:2 core:2 pu:4", 4, 16, 1),
        ("numa:2 pu:3", 6, 6, 2),
        (f"numa:1 core:{_MOST_CORES + 1} pu:1", _MOST_CORES, _MOST_CORES + 1, 1),
    ):
        with environment(HWLOC_SYNTHETIC=topology):
            info = machine_info()
        found = [info.cores, info.processing_units, info.numa_nodes, info.synthetic]
        expect.equal(f"cores, units, nodes and synthetic of {topology}", [cores, units, nodes, 1], found)
        expect.equal(f"processor of {topology}", "", prototypes.text(info.processor))


def _check_processor(expect: Expectations) -> None:
    info = machine_info()
    expect.equal("this machine is synthetic", 0, info.synthetic)
    expect.equal("cores that this process may use", len(available_cores()), info.cores)
    cpuinfo = Path("/proc/cpuinfo")  # a container may hide it
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if names and os.uname().machine == "x86_64":
        expect.equal("processor", names[0], prototypes.text(info.processor))


def _check_threads(expect: Expectations, context: StandaloneContext, partition: str, cores: int) -> set[int]:
    """Compare where the threads are, on a machine with so many cores to bind to; return the units of this rank's.

    With cores enough for all ranks of this machine each thread has a unit of its own; otherwise all threads run
    wherever the process may.
    """
    before = threads_here()
    with Runtime(partition, comm=context.comm) as runtime:
        workers, threads = runtime.partition
        _step(runtime, context.directory)
        mine = _units_of_workers(runtime.partition, before)
        ranks_here = _of_ranks_here(mine, context.comm)
    whose = f"of {partition} on each of {len(ranks_here)} ranks, {cores} cores"
    expect.equal(f"threads of each worker {whose}", [threads] * workers, list(map(len, mine)))
    if cores < workers * threads * len(ranks_here):
        units = {units_of_thread for rank in ranks_here for worker in rank for units_of_thread in worker}
        expect.equal(f"units of each thread {whose}", {frozenset(os.sched_getaffinity(0))}, units)
    else:
        _check_apart(expect, whose, ranks_here)
    return {unit for worker in mine for units in worker for unit in units}


def check_binding(expect: Expectations, runtime: Runtime, before: Collection[int]) -> None:
    """State that each thread of a runtime's workers has a unit of its own, if there are cores for all ranks here.

    ``before`` are the threads that there were before the runtime. Threads aren't bound on a synthetic topology.
    """
    ranks_here = _of_ranks_here(_units_of_workers(runtime.partition, before), runtime.comm)
    workers, threads = runtime.partition
    bound = "HWLOC_SYNTHETIC" not in os.environ and len(available_cores()) >= workers * threads * len(ranks_here)
    if bound and _can_follow_threads():
        _check_apart(expect, f"of {runtime.partition} on {len(ranks_here)} ranks", ranks_here)


def _check_apart(expect: Expectations, whose: str, ranks_here: list[list[list[frozenset[int]]]]) -> None:
    units = [units_of_thread for rank in ranks_here for worker in rank for units_of_thread in worker]
    expect.equal(f"numbers of units of each thread {whose}", {1}, set(map(len, units)))
    expect.equal(f"units of all threads {whose}", len(units), len(frozenset().union(*units)))


def _of_ranks_here(own: list[list[frozenset[int]]], comm: Comm | None) -> list[list[list[frozenset[int]]]]:
    """Return what each rank on this machine has, given that of this rank."""
    node = os.uname().nodename
    of_ranks = comm.allgather((node, own)) if comm else [(node, own)]
    return [workers for where, workers in of_ranks if where == node]


def _step(runtime: Runtime, directory: Path) -> None:
    """Train one step, so that threads that are made for a task are there, too."""
    tokens = np.zeros((1, 1), np.int32)
    checkpoint = checkpoint_in(directory / str(runtime.rank) if runtime.comm else directory, _TINY)
    with Trainer(runtime, checkpoint, batch_size=1, seq_len=1) as trainer:
        trainer.submit(tokens, tokens).result()


def _can_follow_threads() -> bool:
    """Return whether this process may bind threads, and read the names by which `_units_of_workers` knows them."""
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        return not ctypes.CDLL(None).prctl(16, ctypes.create_string_buffer(16))  # PR_GET_NAME
    return False


def threads_here() -> list[int]:
    """Return the system's numbers of this process's threads."""
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


def _units_of_workers(partition: Partition, before: Collection[int]) -> list[list[frozenset[int]]]:
    """Return the units that Linux lets each thread of each worker run on; not of threads that were there before.

    StarPU has a thread for each of the partition's cores, and names it ``CPU`` and the core's number. A worker computes
    in the thread of its first core and in those that OpenMP makes there, which inherit that name.
    """
    units: dict[str, list[frozenset[int]]] = {}
    for number in set(threads_here()) - set(before):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            name = Path(f"/proc/self/task/{number}/comm").read_text().strip()
            units.setdefault(name, []).append(frozenset(os.sched_getaffinity(number)))
    return [units.get(f"CPU {worker * partition.threads}", []) for worker in range(partition.workers)]


def cores_of_two_units(units: Collection[int]) -> dict[str, str]:
    """Return the environment of a topology in which each of these units is the first of a core's two.

    Threads are bound, although hwloc reads the topology from the environment. So a program that confuses numbers of
    cores with numbers of units binds to the second units, which this process may not use, also on a machine whose cores
    have one unit each.
    """
    numbers = [number for other, unit in enumerate(units, max(units) + 1) for number in (unit, other)]
    cores = f"numa:1 core:{len(units)} pu:2(indexes={','.join(map(str, numbers))})"
    return {"HWLOC_SYNTHETIC": cores, "HWLOC_THISSYSTEM": "1"}


def _check_guest(expect: Expectations, comm: Comm | None, signals: list[int]) -> None:
    """State that threads stay where mpirun has bound the rank, and that a runtime leaves its process alone.

    It writes nothing, catches no signal and leaves the variables of the environment as they are. Of a process that is
    bound to one unit StarPU would warn, as it does if the user asks for it. `signals` are those that the process caught
    before its first runtime.
    """
    environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
    units = sorted(os.sched_getaffinity(0), reverse=True)
    unit = units[(comm.Get_rank() if comm else 0) % len(units)]
    for silent in (None, "0") if comm is None else (None,):
        with environment(STARPU_SILENT=silent), bound_to({unit}):
            expect.equal("cores of a process that is bound to one unit", 1, machine_info().cores)
            before, threads = (signals, _variables(), environ.value), threads_here()
            with captured_output() as written:
                with Runtime("1x1", comm=comm) as runtime:
                    places = _units_of_workers(runtime.partition, threads)
                    during = _caught_signals(), _variables(), environ.value
                text = written()
        expect.equal(f"the thread's units with STARPU_SILENT {silent}", [[{unit}]], places)
        if comm is None:
            for what, expected, found in zip(("caught signals", "variables", "environ"), before, during, strict=True):
                expect.equal(f"{what} with STARPU_SILENT {silent}", expected, found)
            if silent is None:
                own = [line for line in text.splitlines() if not line.startswith("[hwloc")]
                expect.equal("output of a runtime, without what hwloc says of the machine", [], own)
            else:
                expect.equal("StarPU's warning, which the user has asked for", True, "only one CPU" in text)


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
