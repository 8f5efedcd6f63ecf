"""Data that crosses ranks: StarPU-MPI's own count of messages and bytes is what the submitted tasks require.

The requirement is derived from the trace alone, by the rules of StarPU-MPI: a rank gets each value that its tasks read
and that another rank owns once, keeps it until a task changes it, and sends what its tasks write to the owner.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from starpullm.data.generator import generate_checkpoint
from starpullm.golden.records import shipped_record
from starpullm.processes.job import Job, run_job
from starpullm.trace import AccessMode

from . import transfer_programs

TIME_LIMIT = 100.0
STEPS = 3

Traffic = Counter[tuple[int, int]]
"""Messages, or bytes, by sender and receiver."""


def owners_of(trace: dict[str, Any], ranks: int, sub_batches: int) -> dict[int, int]:
    """Return the owner of each handle: by its name, and of the others the rank whose update writes it."""
    owners: dict[int, int] = {}
    for number, (name, _) in enumerate(trace["handles"]):
        of_rank, of_part = re.search(r"/rank(\d+)$", name), re.search(r"#(\d+)$", name)
        if of_rank:
            owners[number] = int(of_rank[1])
        elif of_part:
            owners[number] = int(of_part[1]) // sub_batches
        elif name.startswith("mean_loss"):
            owners[number] = 0
    for operation, rank, accesses in trace["tasks"]:
        if operation == "adamw_update":
            owners |= {handle: rank for handle, mode in accesses if mode == AccessMode.READ_WRITE}
    assert len(owners) == len(trace["handles"])
    assert set(owners.values()) == set(range(ranks))
    return owners


def required(trace: dict[str, Any], owners: dict[int, int]) -> tuple[Traffic, Traffic]:
    """Return messages and bytes that the submitted tasks require."""
    messages, sizes = Traffic(), Traffic()
    copies: set[tuple[int, int]] = set()  # handle and rank that has a valid copy beside the owner

    def send(handle: int, source: int, destination: int) -> None:
        messages[source, destination] += 1
        sizes[source, destination] += trace["handles"][handle][1]

    for operation, rank, accesses in trace["tasks"]:
        if operation == "transfer":
            (destination, _), (source, _) = accesses
            send(source, owners[source], owners[destination])
            continue
        for handle, mode in accesses:
            if AccessMode(mode).reads and owners[handle] != rank and (handle, rank) not in copies:
                send(handle, owners[handle], rank)
                copies.add((handle, rank))
        for handle, mode in accesses:
            if AccessMode(mode).writes:
                copies -= {(handle, other) for other in range(len(owners))}
                if owners[handle] != rank:
                    send(handle, rank, owners[handle])
    return messages, sizes


@pytest.mark.parametrize(
    ("ranks", "record", "sub_batches", "reduction"),
    [(2, "tiny", 1, "ordered"), (2, "ragged", 3, "tree"), (3, "ragged", 2, "ordered"), (4, "single", 2, "ordered")],
)
def test_messages_and_bytes(tmp_path: Path, ranks: int, record: str, sub_batches: int, reduction: str) -> None:
    """With one sub-batch on each rank and with several."""
    golden = shipped_record(record)
    generate_checkpoint(tmp_path / "model.bin", golden.model, golden.seed)
    arguments = (record, tmp_path / "model.bin", sub_batches, reduction, STEPS, tmp_path / "trace.json")
    command = [sys.executable, transfer_programs.__file__, *map(str, arguments)]
    done = run_job(Job(command, TIME_LIMIT, ranks, {"STARPU_MPI_STATS": "1"})).completed()
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    messages, sizes = required(trace, owners_of(trace, ranks, sub_batches))
    found_messages: Counter[int] = Counter()
    found_sizes = Traffic()
    for rank, report in done.reports.items():
        text = report.stderr
        found_messages[rank] = int(re.search(rf"\[starpu_comm_stats\]\[{rank}\] nb_sends: (\d+)", text)[1])  # type: ignore[index]
        for receiver, size in re.findall(rf"\[starpu_comm_stats\]\[{rank}:(\d+)\]\t(\d+)\.0+ B", text):
            found_sizes[rank, int(receiver)] = int(size)
    assert max(sizes.values()) < 2**24, "StarPU prints the sums as binary32"
    assert found_sizes == sizes
    assert found_messages == {rank: sum(n for (of, _), n in messages.items() if of == rank) for rank in range(ranks)}
    assert all(sizes[a, b] for a in range(ranks) for b in range(ranks) if a != b)
