"""Starts of a runtime in environments that it refuses or must see; the library reads them once, so each has a process.

Also an MPI that is not as StarPU's transfers need it: a process can start it only once.
"""

from __future__ import annotations

import ctypes
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from starpullm.binding import prototypes
from starpullm.binding.kernels import present_cache
from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StateError
from starpullm.processes.mpirun import outside_of_jobs
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

from ..children import TWO_CORES, Reply, assert_refused, attempt, run_function, simd_levels
from .c_runtimes import loaded_library, loaded_starpu, start_in_c
from .sizes import B, T, batch

LEVELS = ("MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE")
"""By their numbers in Open MPI and in MPICH."""


def start(partition: str) -> Reply:
    return attempt(lambda: Runtime(partition).close())


def start_with(partition: str = "1x1", **variables: str) -> Reply:
    return run_function(start, partition, environment=variables)


def test_simd_level_that_is_not_there() -> None:
    reply = start_with(STARPULLM_SIMD="none")
    expected = f'STARPULLM_SIMD: found "none", expected one of {", ".join(simd_levels())} on this machine'
    assert_refused(reply, InvalidArgumentError, expected)


@pytest.mark.parametrize("cache", ["0", "M", "1M,", "32K,1M", "1M 8M", "1 M", "-1K", "2199023255552"])
def test_no_size_of_a_cache(cache: str) -> None:
    assert_refused(start_with(STARPULLM_L2_CACHE=cache), InvalidArgumentError, f'STARPULLM_L2_CACHE: found "{cache}", ')


@pytest.mark.parametrize("cache", ["2M", "2048K", "2097152"])
def test_size_of_a_cache(cache: str) -> None:
    assert run_function(present_cache, environment={"STARPULLM_L2_CACHE": cache}) == 2 << 20


@pytest.mark.parametrize(
    ("name", "value"), [("STARPULLM_SIMD", "ref"), ("STARPULLM_SIMD", ""), ("STARPULLM_L2_CACHE", "")]
)
def test_allowed(name: str, value: str) -> None:
    assert start_with(**{name: value})["raised"] is None


def beside_starpu() -> Reply:
    starpu = loaded_starpu()
    assert starpu.starpu_init(None) == 0
    reply = start("1x1")
    starpu.starpu_shutdown()
    return reply


def test_beside_another_starpu() -> None:
    reply: Reply = run_function(beside_starpu, environment={"STARPU_SILENT": "1", "STARPU_NCPU": "1", **TWO_CORES})
    assert_refused(reply, StateError, "StarPU is running in this process but wasn't started by starpullm")


def test_truncated_file_of_the_topology(tmp_path: Path) -> None:
    truncated = tmp_path / "topology.xml"
    truncated.write_text('<?xml version="1.0"?>\n<topology version="2.0">\n<object type="Machine" os_index="0"')
    assert_refused(start_with(HWLOC_XMLFILE=str(truncated)), RuntimeFailureError, "hwloc could not read")


def test_openmp_that_binds_threads_itself() -> None:
    reply = start_with("1x2", OMP_PROC_BIND="true", **TWO_CORES)
    assert_refused(reply, InvalidArgumentError, "OMP_PROC_BIND: OpenMP binds threads itself", "for partition 1x2")
    assert start_with("2x1", OMP_PROC_BIND="true", **TWO_CORES)["raised"] is None


def step_of_too_few_threads(checkpoint: str) -> list[Reply]:
    with Runtime("1x2") as runtime, Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as trainer:
        loss = trainer.submit(*batch(0))
        return [attempt(loss.result), attempt(trainer.wait), attempt(trainer.submit, *batch(0))]


def test_openmp_that_gives_too_few_threads(tiny_checkpoint: Path) -> None:
    """The first task that fails is named, whichever that is; the loss, the wait and the next step say the same."""
    environment = {"OMP_THREAD_LIMIT": "1", **TWO_CORES}
    replies: list[Reply] = run_function(step_of_too_few_threads, tiny_checkpoint, environment=environment)
    assert_refused(replies[0], RuntimeFailureError, ": OpenMP gave 1 threads, expected the partition's 2 (")
    assert replies == [replies[0]] * 3


def start_and_end_mpi(required: int) -> tuple[int, Reply, Reply]:
    """Return the level that MPI provides, and how starts of a runtime end that come before and after the end of MPI."""
    prototypes.call("abi_version")  # opens the library, which has loaded MPI
    mpi = loaded_library("libmpi.so", "libmpich.so")
    level = ctypes.c_int()
    mpi.MPI_Init_thread(None, None, required, ctypes.byref(level))
    # Some communicator: MPI is looked at first.
    create = partial(start_in_c, communicator=prototypes.communicator(0))
    running: Any = attempt(create) if level.value < len(LEVELS) - 1 else None
    mpi.MPI_Finalize()
    return level.value, running, attempt(create)


@pytest.mark.parametrize("required", range(len(LEVELS)), ids=LEVELS)
def test_level_of_mpi(required: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = outside_of_jobs(os.environ, on_this_machine=False)  # a rank's process would pass for the same rank
    for name in os.environ.keys() - kept.keys():
        monkeypatch.delenv(name)
    provided, running, ended = run_function(start_and_end_mpi, required)
    if running is not None:
        expected = f"MPI: found it initialized with {LEVELS[provided]}, expected MPI_THREAD_MULTIPLE"
        assert_refused(running, StateError, expected)
    assert_refused(ended, StateError, "MPI is finalized, expected to be running")
