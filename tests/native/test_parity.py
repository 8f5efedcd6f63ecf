"""Bitwise parity with llm.c over partitions, schedulers, sub-batches and topologies, through the command line.

Collected by pytest. Exit statuses on bad records are in test_cli.py.
"""

from __future__ import annotations

import pytest

from starpullm.records import shipped_record

from .children import run_cli

SMALL_RECORDS = "parity: 33020 tensors over 66 steps, 0 differ"


@pytest.mark.parametrize("scheduler", ["eager", "lws", "prio", "random"])
@pytest.mark.parametrize("partition", ["1x1", "2x1"])
def test_all_sub_batch_counts(partition: str, scheduler: str) -> None:
    """Tiny, odd, small and deep, with every number of sub-batches that divides the batch."""
    run = run_cli("parity", "--partition", partition, "--scheduler", scheduler, "--sub-batches", "all", timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == SMALL_RECORDS


@pytest.mark.parametrize(
    ("topology", "partitions"), [("core:4 pu:1", ("3x1", "4x1")), ("numa:2 core:4 pu:1", ("5x1", "8x1"))]
)
def test_synthetic_topologies(topology: str, partitions: tuple[str, str]) -> None:
    """Topologies of 4 and 8 cores, unbound."""
    options = [option for partition in partitions for option in ("--partition", partition)]
    run = run_cli("parity", *options, "--sub-batches", "all", timeout=110, environment={"HWLOC_SYNTHETIC": topology})
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "parity: 66040 tensors over 132 steps, 0 differ"


@pytest.mark.timeout(300)
def test_gpt2_124m() -> None:
    """The real size."""
    record = shipped_record("gpt2-124m").path
    run = run_cli("parity", record, "--partition", "2x1", "--sub-batches", "2", timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "parity: 1980 tensors over 2 steps, 0 differ"
