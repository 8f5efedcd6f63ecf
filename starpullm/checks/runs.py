"""Checks from a record's name to a result: each trains on a runtime that is there already, from the record's model.

Over ranks every rank calls them; the ranks share the record's batch, and sub-batches are those of one rank.
``isolation.py`` calls them in a child process, by name; programs can call them with a ``Place`` of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

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
from starpullm.checks.reduction import (
    BitStabilityResult,
    GradientErrorResult,
    Promise,
    check_bit_stability,
    check_gradients,
)
from starpullm.checks.reference64 import ReadTensor
from starpullm.checks.references import record_trainer
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, shipped_record
from starpullm.processes.ranks import guarded
from starpullm.runtime import Runtime
from starpullm.trace import Trace
from starpullm.trainer import Instruments, Trainer

__all__ = [
    "Place",
    "accesses",
    "find_record",
    "gradients",
    "losses_of_ranks",
    "new_trainer",
    "observed_order",
    "own_batch",
    "parity",
    "parity_with_llmc",
    "poison",
    "reuse",
    "runtime_graph",
    "trace_steps",
    "write_disturbed",
    "write_gradients",
]

R = TypeVar("R")

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


@contextmanager
def new_trainer(
    place: Place,
    record: GoldenRecord,
    *,
    sub_batches: int = 1,
    reduction: str = "ordered",
    keep_activations: bool = True,
    trace: bool = False,
    instruments: Instruments | None = None,
    resume: Path | None = None,
) -> Iterator[Trainer]:
    """Give a trainer with the record's settings, at the record's initial state; over ranks with a rank's own batch.

    ``resume`` names training states to start from instead.

    Raises
    ------
    InvalidArgumentError
        If the ranks, or a rank's sub-batches, don't divide the record's batch.
    """
    runtime = place.runtime
    if record.batch_size % runtime.ranks:
        raise InvalidArgumentError(
            f"{record.name}: its batch of {record.batch_size} can't be spread over {runtime.ranks} ranks"
        )
    trainer = record_trainer(
        runtime,
        record,
        place.checkpoint(record),
        sub_batches=sub_batches,
        reduction=reduction,
        keep_activations=keep_activations,
        steps_in_flight=STEPS - 2,
        trace=trace,
        instruments=instruments,
        resume=resume,
    )
    # The guard is inside: a trainer that is closed waits for the other ranks.
    with trainer, guarded(runtime.comm) if runtime.comm else nullcontext():
        yield trainer


def own_batch(trainer: Trainer, seed: int, number: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return inputs and targets (B, T) of a rank, from the generated batch of all ranks with that number."""
    runtime = trainer.runtime
    inputs, targets = generate_tokens(
        seed, number, runtime.ranks * trainer.batch_size, trainer.seq_len, trainer.config.vocab_size
    )
    own = slice(runtime.rank * trainer.batch_size, (runtime.rank + 1) * trainer.batch_size)
    return inputs[own], targets[own]


def trace_steps(trainer: Trainer, seed: int) -> Trace:
    """Submit `STEPS` steps of generated tokens without waiting in between, and return what ran."""
    for number in range(STEPS):
        trainer.submit(*own_batch(trainer, seed, number))
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
        first, *held = (own_batch(trainer, seed, number) for number in range(STEPS - 1))
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
    with _instrumented(place, record, sub_batches, reduction, Instruments(audit=True)) as trainer:
        return check_accesses(trace_steps(trainer, seed), trainer.findings())


def poison(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> AccessesResult:
    """Train with all memory poisoned that a task or a step mustn't read before it is written."""
    with _instrumented(place, record, sub_batches, reduction, Instruments(poison=True)) as trainer:
        return check_poison(trace_steps(trainer, seed), trainer.findings())


def gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> GradientErrorResult:
    """Compare every gradient of the second step with its sum in float64."""
    golden = find_record(record)
    with _two_steps(place, golden, sub_batches, reduction, seed) as trainer:
        inputs, _ = generate_tokens(seed, 1, golden.batch_size, golden.seq_len, golden.model.vocab_size)
        return _on_rank_0(
            trainer,
            lambda tensor: check_gradients(
                tensor, trainer.config, inputs, sub_batches=place.runtime.ranks * sub_batches
            ),
        )


def losses_of_ranks(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> BitStabilityResult:
    """Compare the mean losses of `STEPS` steps between ranks: each computes them from all ranks' losses."""
    golden = find_record(record)
    with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False) as trainer:
        losses = [trainer.step(*own_batch(trainer, seed, number)) for number in range(STEPS)]
        of_ranks = place.runtime.comm.allgather(losses) if place.runtime.comm else [losses]
    runs = {f"rank {rank}": {"mean_loss": np.array(values)} for rank, values in enumerate(of_ranks)}
    return check_bit_stability(runs, Promise.FIXED_BITS)


def write_gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, path: str) -> None:
    """Write every gradient of the second step to an array file (.npz), by names like ``qkvw[1]``."""
    golden = find_record(record)
    with _two_steps(place, golden, sub_batches, reduction, seed) as trainer:
        tensors = {
            name if layer is None else f"{name}[{layer}]": trainer.tensor(group, name, layer)
            for group, name, layer in execution_order(golden.model.num_layers)
            if group == "grads"
        }
    if place.runtime.rank == 0:
        np.savez(path, allow_pickle=False, **tensors)


def write_disturbed(
    place: Place,
    *,
    record: str,
    sub_batches: int,
    reduction: str,
    seed: int,
    max_delay_us: int,
    delay_seed: int,
    path: str,
) -> ObservedResult:
    """Write what `STEPS` steps with delays leave to an array file (.npz), by names like ``params/qkvw[1]``.

    Returns
    -------
    Whether the run kept the required order.
    """
    instruments = Instruments(max_delay_us=max_delay_us, delay_seed=delay_seed)
    with _instrumented(place, record, sub_batches, reduction, instruments) as trainer:
        trace = trace_steps(trainer, seed)
        tensors = {
            f"{group}/{name}" if layer is None else f"{group}/{name}[{layer}]": trainer.tensor(group, name, layer)
            for group, name, layer in execution_order(trainer.config.num_layers)
            if group in ("grads", "m", "v", "params")
        }
    np.savez(path, allow_pickle=False, **tensors)
    return check_observed(trace)


def _traced(place: Place, record: str, sub_batches: int, reduction: str, seed: int) -> Trace:
    golden = find_record(record)
    with new_trainer(
        place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False, trace=True
    ) as trainer:
        return trace_steps(trainer, seed)


def _instrumented(
    place: Place, record: str, sub_batches: int, reduction: str, instruments: Instruments
) -> AbstractContextManager[Trainer]:
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
def _two_steps(place: Place, record: GoldenRecord, sub_batches: int, reduction: str, seed: int) -> Iterator[Trainer]:
    """Two: the first one's gradients must not be in the second's."""
    with new_trainer(place, record, sub_batches=sub_batches, reduction=reduction) as trainer:
        for number in range(2):
            trainer.step(*own_batch(trainer, seed, number))
        yield trainer


def _on_rank_0(trainer: Trainer, check: Callable[[ReadTensor], R]) -> R:
    """Return a check's result on every rank; rank 0 computes it, the others read with it, as every read needs all."""
    comm = trainer.runtime.comm
    if comm is None:
        return check(trainer.tensor)
    trainer.gather()
    if comm.Get_rank() > 0:
        while True:
            what, told = comm.bcast(None)
            if what == "result":
                result: R = told
                return result
            trainer.tensor(*told)

    def tensor(group: str, name: str, layer: int | None) -> NDArray[np.float32]:
        comm.bcast(("tensor", (group, name, layer)))
        return trainer.tensor(group, name, layer)

    result = check(tensor)
    comm.bcast(("result", result))
    return result
