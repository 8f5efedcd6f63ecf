"""Workers of several threads: llm.c's bits on every partition, one processing unit per thread, no thread missing.

Collected by pytest; the runs are in child processes. Partitions of one thread per worker are in test_parity.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starpullm import Runtime, Trainer
from starpullm.data.generator import generate_tokens
from starpullm.errors import RuntimeFailureError
from starpullm.golden.records import shipped_record

from .children import TWO_CORES, Reply, attempt, run_cli, run_function

TIME_LIMIT = 100.0


def assert_parity(environment: dict[str, str], last_line: str, *options: object) -> None:
    run = run_cli("parity", *options, timeout=TIME_LIMIT, environment=environment).check()
    assert run.stdout.splitlines()[-1] == last_line


@pytest.mark.parametrize("scheduler", ["lws", "eager"])
def test_one_worker_of_two_threads(scheduler: str) -> None:
    """All small records with every number of sub-batches."""
    records = (shipped_record(name).path for name in ("tiny", "odd", "small", "deep"))
    options = (*records, "--partition", "1x2", "--scheduler", scheduler, "--sub-batches", "all")
    assert_parity(TWO_CORES, "parity: 33020 tensors over 66 steps, 0 differ", *options)


@pytest.mark.parametrize(
    ("topology", "partitions"),
    [
        ("core:4 pu:1", ("1x4", "2x2")),
        ("core:6 pu:1", ("2x3", "3x2")),
        ("numa:2 core:4 pu:1", ("2x4", "4x2")),
        ("core:8 pu:1", ("1x8",)),
    ],
)
def test_synthetic_topologies(topology: str, partitions: tuple[str, ...]) -> None:
    """Topologies of 4, 6 and 8 cores, unbound; each record in one and in two parts or three."""
    for names, sub_batches in ((("tiny", "deep"), 2), (("odd",), 3), (("odd", "tiny"), 1)):
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


def test_six_workers_of_six_threads() -> None:
    """As on two processors of 18 cores."""
    records = (shipped_record("tiny").path, shipped_record("odd").path)
    environment = {"HWLOC_SYNTHETIC": "numa:2 core:18 pu:1"}
    assert_parity(environment, "parity: 1650 tensors over 7 steps, 0 differ", *records, "--partition", "6x6")


# ---- Where the threads are ----


def places(partition: str) -> list[list[int]]:
    with Runtime(partition) as runtime:
        return [list(place) for place in runtime.threads()]


@pytest.mark.parametrize(
    ("partition", "threads"), [("1x1", [[0, 0]]), ("1x2", [[0, 0], [0, 1]]), ("2x1", [[0, 0], [1, 0]])]
)
def test_each_thread_has_a_processing_unit_of_its_own(partition: str, threads: list[list[int]]) -> None:
    """Asked of the threads themselves, on this machine's real cores."""
    cores = json.loads(run_cli("doctor", "--json").check().stdout)["cores"]
    if cores < len(threads):
        pytest.skip(f"this machine has {cores} cores, {partition} needs {len(threads)}")
    found = run_function(places, partition, timeout=TIME_LIMIT)
    assert [place[:2] for place in found] == threads
    assert [num_units for _, _, _, num_units in found] == [1] * len(threads)
    assert len({unit for _, _, unit, _ in found}) == len(threads), found


# ---- Threads that aren't there ----


def train_a_step(checkpoint: str, partition: str) -> Reply:
    record = shipped_record("tiny")
    batch = generate_tokens(record.seed, 0, record.batch_size, record.seq_len, record.model.vocab_size)
    with (
        Runtime(partition) as runtime,
        Trainer(runtime, checkpoint, batch_size=record.batch_size, seq_len=record.seq_len) as trainer,
    ):
        return attempt(trainer.step, *batch)


@pytest.mark.parametrize("partition", ["1x2", "2x2"])
def test_fewer_threads_than_the_partition_has(tiny_checkpoint: Path, partition: str) -> None:
    environment = {"HWLOC_SYNTHETIC": "core:4 pu:1", "OMP_THREAD_LIMIT": "1"}
    reply = run_function(train_a_step, tiny_checkpoint, partition, timeout=TIME_LIMIT, environment=environment)
    assert reply["raised"] == RuntimeFailureError.__name__, reply
    assert "OpenMP gave 1 threads, expected the partition's 2" in reply["text"]
    assert "OMP_THREAD_LIMIT" in reply["text"]


def test_openmp_that_binds_threads_itself() -> None:
    """OMP_PROC_BIND and StarPU's binding of its workers together hang; workers of one thread don't use OpenMP."""
    record = shipped_record("tiny").path
    environment = {**TWO_CORES, "OMP_PROC_BIND": "true"}
    run = run_cli("parity", record, "--partition", "1x2", timeout=TIME_LIMIT, environment=environment).check(2)
    assert "OMP_PROC_BIND" in run.stderr
    run = run_cli("parity", record, "--partition", "2x1", timeout=TIME_LIMIT, environment=environment).check()
    assert run.stdout.splitlines()[-1] == "parity: 570 tensors over 3 steps, 0 differ"


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


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_number_of_threads_comes_from_the_partition_alone(threads: int) -> None:
    environment = {**TWO_CORES, "OMP_NUM_THREADS": str(threads)}
    last_line = "parity: 570 tensors over 3 steps, 0 differ"
    assert_parity(environment, last_line, shipped_record("tiny").path, "--partition", "1x2")


# ---- Partitions that can't be ----


@pytest.mark.parametrize(
    ("topology", "partition", "sentence"),
    [
        (TWO_CORES["HWLOC_SYNTHETIC"], "100x2", "partition 100x2: needs 200 cores, found 2 (HWLOC_SYNTHETIC)"),
        (TWO_CORES["HWLOC_SYNTHETIC"], "1x3", "partition 1x3: needs 3 cores, found 2 (HWLOC_SYNTHETIC)"),
        (TWO_CORES["HWLOC_SYNTHETIC"], "2x2", "partition 2x2: needs 4 cores, found 2 (HWLOC_SYNTHETIC)"),
        ("core:128 pu:1", "1x257", "partition 1x257: StarPU was built for at most 256 cores"),
        (
            "core:128 pu:1",
            "63x2",
            "partition 63x2: this StarPU was built for 64 scheduling contexts, expected at most 62 workers of several "
            "threads, or a StarPU configured with --enable-max-sched-ctxs=65 or more",
        ),
    ],
)
def test_refused(topology: str, partition: str, sentence: str) -> None:
    record = shipped_record("tiny").path
    run = run_cli("parity", record, "--partition", partition, environment={"HWLOC_SYNTHETIC": topology}).check(2)
    assert run.stdout == ""
    assert run.stderr.startswith(f"Error: {sentence}")
    assert len(run.stderr.splitlines()) == 1
