"""Checks from a record's name to a result: each trains on a runtime that is there already, from the record's model.

``isolation.py`` calls them in a child process, by name; programs can call them with a ``Place`` of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.accesses import AccessesResult, check_accesses, check_poison
from starpullm.checks.dependencies import (
    ObservedResult,
    ReuseResult,
    RuntimeGraphResult,
    check_observed,
    check_reuse,
    check_runtime_graph,
    typical_durations,
)
from starpullm.checks.llmc import run_llmc
from starpullm.checks.parity import ParityResult, check_parity, execution_order, make_inputs
from starpullm.checks.reduction import GradientErrorResult, check_gradients
from starpullm.checks.references import record_trainer
from starpullm.data import generate_tokens
from starpullm.records import SHIPPED_RECORDS, GoldenRecord, shipped_record
from starpullm.runtime import Runtime
from starpullm.trace import Trace
from starpullm.trainer import Instruments, Trainer

__all__ = [
    "Place",
    "accesses",
    "find_record",
    "gradients",
    "new_trainer",
    "observed_order",
    "parity",
    "parity_with_llmc",
    "poison",
    "reuse",
    "runtime_graph",
    "trace_steps",
    "write_gradients",
]

STEPS = 4
"""Steps of a traced run: the first has nothing to reuse, and two more than may be in flight have to wait."""


@dataclass(frozen=True)
class Place:
    """Where a check runs: a runtime, and a directory for generated models."""

    runtime: Runtime
    directory: Path

    def checkpoint(self, record: GoldenRecord) -> Path:
        """Return the record's model; one that is there already is taken if its hash is still the record's."""
        directory = self.directory / record.checkpoint_sha256[:16]
        path = directory / f"{record.name}.bin"
        if path.is_file():
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() == record.checkpoint_sha256:
                    return path
        directory.mkdir(exist_ok=True)
        return make_inputs(record, directory)


def find_record(name: str) -> GoldenRecord:
    """Return a record by its shipped name, or from its file.

    Raises
    ------
    FormatError, FileError
        If there is no record in the file.
    """
    return shipped_record(name) if name in SHIPPED_RECORDS else GoldenRecord.load(name)


def new_trainer(
    place: Place,
    record: GoldenRecord,
    *,
    sub_batches: int = 1,
    reduction: str = "ordered",
    keep_activations: bool = True,
    trace: bool = False,
    instruments: Instruments | None = None,
) -> Trainer:
    """Return a trainer with the record's settings, at the record's initial state."""
    return record_trainer(
        place.runtime,
        record,
        place.checkpoint(record),
        sub_batches=sub_batches,
        reduction=reduction,
        keep_activations=keep_activations,
        steps_in_flight=STEPS - 2,
        trace=trace,
        instruments=instruments,
    )


def trace_steps(trainer: Trainer, seed: int) -> Trace:
    """Submit `STEPS` steps of generated tokens without waiting in between, and return what ran."""
    for number in range(STEPS):
        trainer.submit(*generate_tokens(seed, number, trainer.batch_size, trainer.seq_len, trainer.config.vocab_size))
    return trainer.trace()


def parity(place: Place, *, record: str, sub_batches: int, reduction: str) -> ParityResult:
    """Compare every tensor of every step with a record."""
    golden = find_record(record)
    return check_parity(golden, place.runtime, place.checkpoint(golden), sub_batches=sub_batches, reduction=reduction)


def parity_with_llmc(place: Place, *, library: str, record: str, sub_batches: int, reduction: str) -> ParityResult:
    """Compare every tensor of every step with llm.c, run here as a record says."""
    case = find_record(record)
    checkpoint = place.checkpoint(case)
    reference = run_llmc(Path(library), case, checkpoint, place.directory, place.runtime.comm)
    return check_parity(
        reference.record,
        place.runtime,
        checkpoint,
        sub_batches=sub_batches,
        reduction=reduction,
        reference=reference,
    )


def runtime_graph(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> RuntimeGraphResult:
    """Compare the graph that StarPU made of two steps, which are held back until it has been asked, with the order."""
    golden = find_record(record)
    with new_trainer(
        place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False, trace=True
    ) as trainer:
        first, *held = (_batch(golden, seed, number) for number in range(STEPS - 1))
        trainer.submit(*first)
        trainer.wait()
        trainer.clear_trace()
        trainer.hold()
        for batch in held:
            trainer.submit(*batch)
        edges = trainer.release()
        return check_runtime_graph(trainer.trace(), edges)


def observed_order(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> ObservedResult:
    """Compare a run's intervals with the order that its accesses require."""
    return check_observed(_traced(place, record, sub_batches, reduction, seed))


def reuse(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> ReuseResult:
    """Compare the critical path with that of the same flow in which every step has buffers of its own."""
    trace = _traced(place, record, sub_batches, reduction, seed)
    return check_reuse(trace, durations=typical_durations(trace))


def accesses(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> AccessesResult:
    """Compare what every task does to memory with what it declared; on 1x1."""
    trainer = _instrumented(place, record, sub_batches, reduction, Instruments(audit=True))
    with trainer:
        return check_accesses(trace_steps(trainer, seed), trainer.findings())


def poison(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> AccessesResult:
    """Train with all memory poisoned that a task or a step mustn't read before it is written."""
    trainer = _instrumented(place, record, sub_batches, reduction, Instruments(poison=True))
    with trainer:
        return check_poison(trace_steps(trainer, seed), trainer.findings())


def gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> GradientErrorResult:
    """Compare every gradient of a step with its sum in float64."""
    golden = find_record(record)
    with _one_step(place, golden, sub_batches, reduction, seed) as trainer:
        inputs, _ = _batch(golden, seed, 0)
        return check_gradients(trainer.tensor, trainer.config, inputs, sub_batches=sub_batches)


def write_gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, path: str) -> None:
    """Write every gradient of a step to an array file (.npz), by names like ``qkvw[1]``."""
    golden = find_record(record)
    with _one_step(place, golden, sub_batches, reduction, seed) as trainer:
        tensors = {
            name if layer is None else f"{name}[{layer}]": trainer.tensor(group, name, layer)
            for group, name, layer in execution_order(golden.model.num_layers)
            if group == "grads"
        }
    np.savez(path, allow_pickle=False, **tensors)


def _traced(place: Place, record: str, sub_batches: int, reduction: str, seed: int) -> Trace:
    golden = find_record(record)
    with new_trainer(
        place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False, trace=True
    ) as trainer:
        return trace_steps(trainer, seed)


def _instrumented(place: Place, record: str, sub_batches: int, reduction: str, instruments: Instruments) -> Trainer:
    return new_trainer(
        place,
        find_record(record),
        sub_batches=sub_batches,
        reduction=reduction,
        keep_activations=False,
        trace=True,
        instruments=instruments,
    )


@contextmanager
def _one_step(place: Place, record: GoldenRecord, sub_batches: int, reduction: str, seed: int) -> Iterator[Trainer]:
    with new_trainer(place, record, sub_batches=sub_batches, reduction=reduction) as trainer:
        trainer.step(*_batch(record, seed, 0))
        yield trainer


def _batch(record: GoldenRecord, seed: int, number: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return generate_tokens(seed, number, record.batch_size, record.seq_len, record.model.vocab_size)
