"""Workers of several threads: llm.c's bits on every partition, one processing unit per thread, no thread missing.

Partitions of one thread per worker are in test_parity.py.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import pytest

from starpullm.binding.library import find_library
from starpullm.checks.cases import Case
from starpullm.checks.check_context import StandaloneContext
from starpullm.checks.threads import Threads
from starpullm.golden.records import shipped_record
from starpullm.machine import count_cores

from .children import TWO_CORES, run_cli, run_function
from .tiny import batch, bits_of, tiny_trainer

TIME_LIMIT = 100.0


def assert_parity(environment: dict[str, str], last_line: str, *options: object) -> None:
    run = run_cli("parity", *options, timeout=TIME_LIMIT, environment=environment).check()
    assert run.stdout.splitlines()[-1] == last_line


@pytest.mark.parametrize(
    ("topology", "partitions"),
    [
        ("core:4 pu:1", ("1x4", "2x2")),
        ("numa:2 core:4 pu:1", ("4x2",)),
    ],
)
def test_synthetic_topologies(topology: str, partitions: tuple[str, ...]) -> None:
    """Topologies of 4 and 8 cores, unbound; each record in one and in two parts or three."""
    for names, sub_batches in ((("tiny",), 2), (("odd",), 3), (("odd", "tiny"), 1)):
        records = [shipped_record(name) for name in names]
        tensors = len(partitions) * sum(
            len(tensors) for record in records for step in record.steps for tensors in step.digests.values()
        )
        steps = len(partitions) * sum(record.num_steps for record in records)
        assert_parity(
            {"HWLOC_SYNTHETIC": topology},
            f"parity: {tensors} tensors over {steps} steps, 0 differ",
            *(record.path for record in records),
            *(option for partition in partitions for option in ("--partition", partition)),
            *("--sub-batches", sub_batches),
        )


def write_units(path: Path, count: int) -> None:
    """Write a topology of so many processing units without cores, as hwloc's 2.x lstopo does."""
    nodes = 'nodeset="0x1" complete_nodeset="0x1"'

    def sets(units: int) -> str:
        return f'cpuset="{units:#x}" complete_cpuset="{units:#x}" {nodes}'

    units = "".join(f'<object type="PU" os_index="{n}" {sets(1 << n)} gp_index="{n + 3}"/>' for n in range(count))
    every = sets((1 << count) - 1)
    path.write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n'
        f'<object type="Machine" os_index="0" {every} gp_index="1">\n'
        f'<object type="NUMANode" os_index="0" {every} gp_index="2" local_memory="1073741824"/>\n'
        f"{units}\n</object>\n</topology>\n",
        "utf-8",
    )


def test_processing_units_without_cores_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that hides which units belong together."""
    topology = tmp_path / "units.xml"
    write_units(topology, 4)
    environment = {"HWLOC_XMLFILE": str(topology)}
    monkeypatch.setenv("HWLOC_XMLFILE", str(topology))
    monkeypatch.delenv("HWLOC_SYNTHETIC", raising=False)
    described = json.loads(run_cli("doctor", "--json", environment=environment).check().stdout)
    assert (described["cores"], described["processing_units"], count_cores()) == (4, 4, 4)
    assert described["partitions"] == ["1x4", "2x2", "4x1"]
    tiny = ("tiny", "--partition", "4x1", "--partition", "2x2")
    assert_parity(environment, "parity: 1140 tensors over 6 steps, 0 differ", *tiny)
    assert_parity({"HWLOC_SYNTHETIC": "pu:4"}, "parity: 1140 tensors over 6 steps, 0 differ", *tiny)


def test_six_workers_of_six_threads() -> None:
    """As on two processors of 18 cores."""
    records = (shipped_record("tiny").path, shipped_record("odd").path)
    environment = {"HWLOC_SYNTHETIC": "numa:2 core:18 pu:1"}
    assert_parity(environment, "parity: 1650 tensors over 7 steps, 0 differ", *records, "--partition", "6x6")


def train_on_nodes(checkpoint: str, partition: str) -> tuple[int, list[int], str]:
    """Return the number of StarPU's memory nodes, the tasks of each worker, and the bits after three steps."""
    with tiny_trainer(partition, checkpoint, sub_batches=2, trace=True) as trainer:
        for step in range(3):
            trainer.step(*batch(step))
        nodes = ctypes.CDLL(str(find_library())).starpu_memory_nodes_get_count()
        workers = [task.worker for task in trainer.trace()]
        return nodes, [workers.count(worker) for worker in range(4)], bits_of(trainer)


def test_two_memory_nodes(tiny_checkpoint: Path) -> None:
    """Two workers have each: StarPU moves data between them."""
    environment = {"HWLOC_SYNTHETIC": "numa:2 core:2 pu:1"}
    _, _, expected = run_function(train_on_nodes, tiny_checkpoint, "1x1", environment=environment)
    environment["STARPU_USE_NUMA"] = "1"
    nodes, tasks, bits = run_function(train_on_nodes, tiny_checkpoint, "4x1", environment=environment)
    assert nodes == 2
    assert min(sum(tasks[:2]), sum(tasks[2:])) > 0
    assert bits == expected


def test_openmp_that_chooses_the_number_itself() -> None:
    """With OMP_DYNAMIC the machine's load decides: either all threads are there, or the run says which aren't."""
    record = shipped_record("tiny").path
    environment = {**TWO_CORES, "OMP_DYNAMIC": "true"}
    run = run_cli("parity", record, "--partition", "1x2", timeout=TIME_LIMIT, environment=environment)
    if run.returncode == 0:
        assert run.stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"
    else:
        run.check(4)
        assert "OpenMP gave 1 threads, expected the partition's 2" in run.stderr
        assert "OMP_DYNAMIC" in run.stderr


@pytest.mark.parametrize("threads", [1, 3])
def test_number_of_threads_comes_from_the_partition_alone(threads: int) -> None:
    environment = {**TWO_CORES, "OMP_NUM_THREADS": str(threads)}
    last_line = "parity: 570 tensors over 3 steps, 0 differ"
    assert_parity(environment, last_line, shipped_record("tiny").path, "--partition", "1x2")


CATCHES_WHEN_OPENED = """
#include <signal.h>

static void nothing(int number)
{
    (void)number;
}

__attribute__((constructor)) static void catch_one(void)
{
    signal(SIGHUP, nothing);
}
"""


def lines_of_threads(directory: str) -> list[str]:
    return Threads().run(StandaloneContext(Path(directory), None), Case()).lines()


def test_a_signal_that_a_library_catches_when_it_is_opened(tmp_path: Path) -> None:
    """As UCX does, which Open MPI 5 is linked with: it isn't a runtime that catches it."""
    source, library = tmp_path / "catches.c", tmp_path / "libcatches.so"
    source.write_text(CATCHES_WHEN_OPENED, "utf-8")
    linked = ["-Wl,--no-as-needed", str(find_library()), f"-Wl,-rpath,{find_library().parent}"]
    subprocess.run(["cc", "-shared", "-fPIC", source, *linked, "-o", library], check=True, timeout=60)
    environment = {**TWO_CORES, "STARPULLM_LIB": str(library)}
    [line] = run_function(lines_of_threads, tmp_path, timeout=TIME_LIMIT, environment=environment)
    assert line.startswith("threads: passed: "), line
