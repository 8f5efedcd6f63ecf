"""Runtimes that are refused: partitions, schedulers, a second one, one that is closed too early; in one process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from starpullm.binding import prototypes, structs
from starpullm.binding.library import find_library
from starpullm.errors import InvalidArgumentError, StarpullmError, StateError
from starpullm.instruments import Instruments
from starpullm.machine import machine_info
from starpullm.runtime import Partition, Runtime, schedulers
from starpullm.trainer import Trainer

from .c_runtimes import handle_of, loaded_starpu, start_in_c
from .refusals import refused
from .sizes import B, T

pytestmark = pytest.mark.child("no runtime")

CLOSED = "the runtime is closed, expected one that is running"
NO_BLAS = "/nowhere/libblas.so"

_SCHEDULER_FUNCTIONS = 12
"""Pointers at the beginning of ``struct starpu_sched_policy``."""

_CORES = 24
"""So many threads that starting and ending them takes longer than a call."""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, unless a test says something else."""
    monkeypatch.setenv("HWLOC_SYNTHETIC", "numa:1 core:2 pu:1")
    monkeypatch.delenv("OMP_PROC_BIND", raising=False)


@pytest.fixture
def open_trainer(tiny_checkpoint: Path) -> Callable[..., Trainer]:
    """Return a function from a runtime and options to a trainer of tiny."""
    return lambda runtime, **options: Trainer(runtime, tiny_checkpoint, batch_size=B, seq_len=T, **options)


# ---- Partitions ----


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 0), (-1, 1), (1, -1)])
def test_partition_of_nothing(workers: int, threads: int) -> None:
    with refused(InvalidArgumentError, f"partition {workers}x{threads}: expected at least one worker of one thread"):
        Runtime(Partition(workers, threads))


@pytest.mark.parametrize(("partition", "cores"), [("3x1", 3), ("1x3", 3), ("2x2", 4), ("100x2", 200)])
def test_partition_of_too_many_cores(partition: str, cores: int) -> None:
    with refused(InvalidArgumentError, f"partition {partition}: needs {cores} cores, found 2 (HWLOC_SYNTHETIC)"):
        Runtime(partition)


@pytest.mark.parametrize("partition", ["1x1", "2x1", "1x2"])
def test_allowed_partition(partition: str) -> None:
    Runtime(partition).close()


@pytest.mark.parametrize("limit", ["cores", "contexts"])
def test_limits_of_starpu(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Compare what the library reports of StarPU with what it refuses by.

    So many workers aren't started: a BLAS that is not there is refused after the partition, and so tells that the
    partition was not.
    """
    most, contexts = machine_info().starpu_max_workers, machine_info().starpu_max_contexts
    monkeypatch.setenv("HWLOC_SYNTHETIC", f"core:{most + 1} pu:1")
    too_large = [(1, most + 1), (most + 1, 1), (1 << 16, 1 << 16)]
    large, sentence = [(most, 1), (1, most)], f"StarPU was built for at most {most} cores"
    if limit == "contexts":
        too_large = [(contexts - 1, 2)] if 2 * (contexts - 1) <= most else []
        sentence = f"this StarPU was built for {contexts} scheduling contexts, expected at most {contexts - 2} workers"
        large = [(min(contexts - 2, most // 2), 2)]
    for (workers, threads), start in (
        *((partition, f"partition {partition[0]}x{partition[1]}: {sentence}") for partition in too_large),
        *((partition, f"blas_library: {NO_BLAS}: can't be opened: ") for partition in large),
    ):
        with refused(InvalidArgumentError, start):
            start_in_c(workers=workers, threads_per_worker=threads, blas_library=NO_BLAS.encode())


@pytest.mark.parametrize("partition", ["2x1", "1x2"])
def test_audit(open_trainer: Callable[..., Trainer], partition: str) -> None:
    start = f"instruments: found the audit on partition {partition}, expected 1x1"
    with Runtime(partition) as runtime, refused(InvalidArgumentError, start):
        open_trainer(runtime, trace=True, instruments=Instruments(audit=True))


# ---- Schedulers ----


def test_schedulers() -> None:
    names = schedulers()
    assert {"eager", "random", "lws", "prio", "dmda", "ws"} - set(names) == set()
    assert "graph_test" not in names


@pytest.mark.parametrize("name", ["none", "LWS", "", "graph_test"])
def test_scheduler_that_is_not_there(name: str) -> None:
    numbers = [ctypes.c_int() for _ in range(3)]
    loaded_starpu().starpu_get_version(*map(ctypes.byref, numbers))
    version = ".".join(str(number.value) for number in numbers)
    assert prototypes.text(machine_info().starpu_version) == version
    start = f'scheduler: found "{name}", expected one that StarPU {version} has'
    with refused(InvalidArgumentError, start, ", ".join(schedulers())):
        Runtime("1x1", name)


def test_no_scheduler() -> None:
    with refused(InvalidArgumentError, "scheduler: none was given, expected one of StarPU's names"):
        start_in_c(scheduler=None)


@pytest.mark.parametrize(
    ("name", "partition"), [("eager", "1x1"), ("lws", "1x1"), ("random", "2x1"), ("prio", "1x2"), ("dmda", "2x1")]
)
def test_scheduler_in_use(monkeypatch: pytest.MonkeyPatch, name: str, partition: str) -> None:
    """It is the one of StarPU's that consists of the same functions; what the options say comes first."""
    monkeypatch.setenv("STARPU_SCHED", "ws")
    monkeypatch.setenv("STARPU_NCPU", "1")
    functions = ctypes.POINTER(ctypes.c_void_p * _SCHEDULER_FUNCTIONS)
    starpu = loaded_starpu()
    starpu.starpu_sched_get_sched_policy.restype = functions
    starpu.starpu_sched_get_predefined_policies.restype = ctypes.POINTER(functions)
    with Runtime(partition, name):
        used = list(starpu.starpu_sched_get_sched_policy().contents)
        known = starpu.starpu_sched_get_predefined_policies()
        assert [scheduler for number, scheduler in enumerate(schedulers()) if list(known[number].contents) == used] == [
            name
        ]


# ---- MPI and BLAS ----


def test_communicator_without_mpi() -> None:
    with refused(StateError, "MPI is not initialized, expected to be running"):
        start_in_c(communicator=prototypes.communicator(0))


@pytest.mark.parametrize(
    ("path", "sentence"),
    [(NO_BLAS, f"can't be opened: {NO_BLAS}: "), (str(find_library()), "has no function cblas_sgemm, expected a BLAS")],
    ids=["no file", "another library"],
)
def test_blas(path: str, sentence: str) -> None:
    with refused(InvalidArgumentError, f"blas_library: {path}: {sentence}"):
        start_in_c(blas_library=path.encode())
    assert prototypes.text(prototypes.call("blas")) == ""


# ---- The order of starts and ends ----


def test_second_runtime() -> None:
    with Runtime("1x1"), refused(StateError, "a runtime is running already in this process, expected none: close it"):
        Runtime("1x1")


def test_closing_a_runtime_with_trainers(open_trainer: Callable[..., Trainer]) -> None:
    runtime = Runtime("1x1")
    trainers = [open_trainer(runtime) for _ in range(2)]
    for number, trainer in zip((2, 1), trainers, strict=True):
        with refused(StateError, f"sessions are open on the runtime: {number}, expected none: close them first"):
            runtime.close()
        trainer.close()
    runtime.close()


@pytest.mark.parametrize("name", ["runtime_destroy", "session_create", "runtime_offloaded"])
def test_closed_runtime(name: str) -> None:
    runtime = Runtime("1x1")
    handle = handle_of(runtime)
    runtime.close()
    with refused(StateError, CLOSED):
        if name == "runtime_offloaded":
            prototypes.results(name, handle)
        else:
            call_with(name, handle)


def call_with(name: str, handle: structs.Handle) -> None:
    session = (handle, structs.new("session_options"), structs.Handle("session").address)
    prototypes.call(name, *(session if name == "session_create" else (handle.address,)))


def test_platform_functions(open_trainer: Callable[..., Trainer]) -> None:
    with Runtime("2x1") as runtime:
        trainer = open_trainer(runtime)
        with refused(StateError, "sessions are open on the runtime: 1, expected none: close them first"):
            runtime.restart(platform_functions=True)
        runtime.restart(platform_functions=False)
        trainer.close()
        before = runtime.platform_functions
        runtime.restart(platform_functions=True)
        assert (before, runtime.platform_functions) == (False, True)
    with refused(StateError, CLOSED):
        runtime.restart(platform_functions=False)
    Runtime("2x1", "eager").close()


# ---- Calls that one thread makes while another one starts or closes the runtime ----


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a partition with many threads."""
    monkeypatch.setenv("HWLOC_SYNTHETIC", f"core:{_CORES} pu:1")
    return f"{_CORES}x1"


def test_runtime_that_two_threads_start(many_cores: str) -> None:
    runtimes: list[Runtime] = []
    error = error_while_another(lambda: runtimes.append(Runtime(many_cores)), start_in_c, threads=1)
    runtimes[0].close()
    assert (type(error), str(error)[:38]) == (StateError, "a runtime is running already in this p")


@pytest.mark.parametrize("name", ["session_create", "runtime_destroy"])
def test_call_while_another_thread_closes_the_runtime(many_cores: str, name: str) -> None:
    runtime = Runtime(many_cores)
    handle = handle_of(runtime)
    error = error_while_another(runtime.close, lambda: call_with(name, handle), threads=-1)
    assert (type(error), str(error)) == (StateError, CLOSED)


def error_while_another(
    first: Callable[[], object], second: Callable[[], object], *, threads: int
) -> StarpullmError | None:
    """Return what the second call raises that begins when the first one, by another thread, is inside the library.

    StarPU starts (`threads` is 1) or ends (-1) its own threads meanwhile. So their number says, without a time, that
    the other thread is there. Whenever the call comes, its ending must be the same.
    """
    other = threading.Thread(target=first)
    before = _num_threads()
    other.start()
    while (_num_threads() - before - 1) * threads <= 0 and other.is_alive():
        pass
    found = None
    try:
        second()
    except StarpullmError as error:
        found = error
    other.join()
    while Path(f"/proc/self/task/{other.native_id}").exists():  # join returns before Linux has ended the thread
        pass
    return found


def _num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
