"""Compares trainings on every placement with llm.c's golden records, bit for bit, and prints a table.

Run by hand: ``.cache/venv/bin/python -P benchmarks/parity_matrix.py --full``; ``--cores 1 --cores 2`` or ``--ranks 2``
selects a part. Partitions of more cores than the machine has run on a synthetic topology. The exit status is 1 if any
bit differs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass

import click

from starpullm.golden.records import SHIPPED_RECORDS, shipped_record
from starpullm.processes.endings import Job
from starpullm.processes.job import run_job

SMALL_RECORDS = [name for name in SHIPPED_RECORDS if name != "gpt2-124m"]
CORES = (1, 2, 4, 6, 8, 36)
RANKS = (2, 3, 4)


@dataclass(frozen=True)
class Cell:
    """One run of ``starpullm parity``; `sub_batches` is the number on one rank, ``all`` every divisor of its batch."""

    partition: str
    ranks: int
    topology: str | None
    records: tuple[str, ...]
    sub_batches: str


def topology_of(cores: int) -> str | None:
    """Return a synthetic topology with so many cores, None if this machine has them."""
    if cores <= len(os.sched_getaffinity(0)):
        return None
    nodes = 2 if cores > 4 else 1
    return f"numa:{nodes} core:{cores // nodes} pu:1"


def cells(cores: tuple[int, ...], ranks: tuple[int, ...], *, full: bool) -> list[Cell]:
    """Return the matrix: one process on every WxT of so many cores, and ranks with 1 and 2 sub-batches each."""
    plan = [
        Cell(f"{workers}x{count // workers}", 1, topology_of(count), tuple(SMALL_RECORDS), "all")
        for count in cores
        for workers in range(1, count + 1)
        if count % workers == 0
    ]
    for size in ranks:
        for parts in (1, 2):
            fitting = [name for name in SMALL_RECORDS if shipped_record(name).batch_size % (size * parts) == 0]
            plan.append(Cell("1x1", size, None, tuple(fitting), str(parts)))
    if full:
        plan += [Cell(partition, 1, None, ("gpt2-124m",), "2") for partition in ("1x2", "2x1")]
        plan.append(Cell("1x1", 2, None, ("gpt2-124m",), "1"))
    return plan


def run_cell(cell: Cell, time_limit: float) -> tuple[int, int, int]:
    """Return the numbers of runs, of tensors, and of tensors that differ."""
    command = [sys.executable, "-P", "-m", "starpullm.commands", "parity", "--json", "--partition", cell.partition]
    command += ["--sub-batches", cell.sub_batches, *(str(shipped_record(name).path) for name in cell.records)]
    outcome = run_job(
        Job(
            tuple(command),
            time_limit=time_limit,
            ranks=cell.ranks if cell.ranks > 1 else None,
            environment={"HWLOC_SYNTHETIC": cell.topology} if cell.topology else {},
        )
    )
    report = outcome.reports.get(0)
    if report is None or not report.stdout.lstrip().startswith("["):
        raise click.ClickException(str(outcome))
    results = json.loads(report.stdout)
    tensors = sum(result["compared"] for result in results)
    return len(results), tensors, sum(result["count"] for result in results)


@click.command()
@click.option(
    "--cores",
    multiple=True,
    type=int,
    default=CORES,
    show_default=True,
    help="Cores of the partitions; 0: no partitions.",
)
@click.option(
    "--ranks", multiple=True, type=int, default=RANKS, show_default=True, help="Numbers of ranks; 1: no ranks."
)
@click.option("--full", is_flag=True, help="Add the 124M model on 1x2, on 2x1 and on 2 ranks.")
@click.option("--time-limit", default=1200.0, show_default=True, help="Seconds for one line of the table.")
def main(cores: tuple[int, ...], ranks: tuple[int, ...], full: bool, time_limit: float) -> None:
    """Print a line per placement: runs, tensors compared, tensors that differ, seconds."""
    for name in [name for name in os.environ if name.startswith(("HWLOC_", "OMP_"))]:
        del os.environ[name]
    plan = cells(tuple(c for c in cores if c > 0), tuple(r for r in ranks if r > 1), full=full)
    if not plan:
        raise click.UsageError("--cores, --ranks: found no placement; nothing would be compared")
    total = 0
    print(f"{'partition':<10}{'ranks':>6}{'parts':>6}{'runs':>6}{'tensors':>10}{'differ':>8}{'seconds':>9}  records")
    for cell in plan:
        begin = time.perf_counter()
        runs, tensors, different = run_cell(cell, time_limit)
        if not tensors:
            raise click.ClickException(f"{cell}: nothing was compared")
        total += different
        print(
            f"{cell.partition:<10}{cell.ranks:>6}{cell.sub_batches:>6}{runs:>6}{tensors:>10}{different:>8}"
            f"{time.perf_counter() - begin:>9.1f}  {' '.join(cell.records)}",
            flush=True,
        )
    print(f"{len(plan)} placements, {total} tensors differ")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
