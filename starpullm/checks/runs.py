"""Complete runs of the checks: each trains on a given runtime with a record's model, and returns a result.

Over ranks all ranks must call them. The ranks share the record's batch; a number of sub-batches is that of one rank.
``isolation.py`` calls them by name in a child process.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from starpullm.checks.cases import find_record
from starpullm.checks.place import Place
from starpullm.checks.recorded_run import recorded_run
from starpullm.checks.training import STEPS, new_trainer, trace_steps
from starpullm.processes.clocks import read_clock
from starpullm.traces.merge import on_one_clock
from starpullm.trainer import Instruments, Trainer

R = TypeVar("R")

MAX_RECORDED = 4
"""Configurations of which a report has a recording, at most."""

MAX_RECORDED_PARAMETERS = 10**7
"""Of a model that is recorded for a report, because its steps take time and memory of their own."""


def write_recording(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, path: str) -> None:
    """Record ``STEPS`` steps of all ranks, and write them to a JSON file as a report has them."""
    recording = record_steps(place, record=record, sub_batches=sub_batches, reduction=reduction, seed=seed)
    if place.runtime.rank == 0:
        Path(path).write_text(json.dumps(recording))


def record_steps(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> dict[str, Any]:
    """Return the recording of ``STEPS`` steps of all ranks, as a report has it."""
    runtime = place.runtime
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        began = read_clock(runtime.comm)
        trace = on_one_clock(trace_steps(trainer, seed), runtime.comm, began, read_clock(runtime.comm))
    ranks = f" {runtime.ranks} ranks" if runtime.ranks > 1 else ""
    return recorded_run(
        trace,
        name=f"{find_record(record).name}, sub-batches {sub_batches}, {reduction}, {STEPS} steps",
        configuration=f"{runtime.partition} {runtime.scheduler}{ranks}",
    )


def _traced_trainer(
    place: Place, record: str, sub_batches: int, reduction: str, instruments: Instruments | None = None
) -> AbstractContextManager[Trainer]:
    options = {"sub_batches": sub_batches, "reduction": reduction, "instruments": instruments}
    return new_trainer(place, find_record(record), keep_activations=False, trace=True, **options)
