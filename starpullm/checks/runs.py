"""Complete runs of the checks: each trains on a given runtime with a record's model, and returns a result.

Over ranks all ranks must call them. The ranks share the record's batch; a number of sub-batches is that of one rank.
``isolation.py`` calls them by name in a child process.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.accesses import check_accesses, check_poison
from starpullm.checks.dependencies import check_observed, check_reuse, check_runtime_graph, typical_durations
from starpullm.checks.labels import wrong_labels
from starpullm.checks.llmc import run_llmc
from starpullm.checks.observer import Observer
from starpullm.checks.parity import check_parity, execution_order, make_inputs
from starpullm.checks.placement import own_sequences
from starpullm.checks.recorded_run import recorded_run
from starpullm.checks.reduction import GradientErrorResult, check_gradients
from starpullm.checks.reference64 import ReadTensor
from starpullm.checks.references import record_trainer
from starpullm.checks.result import CheckResult, Outcome
from starpullm.checks.same_bits import check_same_bits, require_delays
from starpullm.checks.tree import check_tree
from starpullm.data.generator import generate_tokens
from starpullm.errors import FileError
from starpullm.golden.records import SHIPPED_RECORDS, GoldenRecord, layer_name, shipped_record
from starpullm.processes.clocks import read_clock
from starpullm.processes.ranks import guarded
from starpullm.runtime import Runtime
from starpullm.trace import Trace
from starpullm.traces.merge import on_one_clock
from starpullm.trainer import Instruments, Trainer

R = TypeVar("R")

STEPS = 4
"""Steps of a traced run: the first one reuses nothing, and two more than may be in flight have to wait."""


MAX_RECORDED = 4
"""Configurations of which a report has a recording, at most."""

MAX_RECORDED_PARAMETERS = 10**7
"""Of a model that is recorded for a report, because its steps take time and memory of their own."""


@dataclass(frozen=True)
class Place:
    """Where a check runs: a runtime, and a directory for generated models."""

    runtime: Runtime
    directory: Path

    def checkpoint(self, record: GoldenRecord) -> Path:
        """Return the record's model; an existing file is used if it still has the record's hash."""
        return checkpoint_in(self.directory, record)


def checkpoint_in(directory: Path, record: GoldenRecord) -> Path:
    """Return a record's model in a directory; an existing file is used if it still has the record's hash."""
    directory = directory / record.checkpoint_sha256[:16]
    path = directory / f"{record.name}.bin"
    if path.is_file():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == record.checkpoint_sha256:
                return path
    directory.mkdir(exist_ok=True)
    return make_inputs(record, directory)


def find_record(name: str) -> GoldenRecord:
    """Return the shipped record of this name, or else the record in the file of this name.

    The name of a shipped record may end in ``.json``, if there is no such file.

    Raises
    ------
    FormatError, FileError
        If the file doesn't contain a record, or can't be read.
    """
    shipped = name.removesuffix(".json")
    if shipped in SHIPPED_RECORDS and (shipped == name or not Path(name).exists()):
        return shipped_record(shipped)
    if not Path(name).suffix and not Path(name).exists():
        raise FileError(
            f"{name}: no such file, expected one or the name of a shipped record: {', '.join(SHIPPED_RECORDS)}",
            errno.ENOENT,
            name,
        )
    return GoldenRecord.load(name)


@contextmanager
def new_trainer(place: Place, record: GoldenRecord, **options: Any) -> Iterator[Trainer]:
    """Provide a trainer with the record's model and settings, before its first step; options as ``record_trainer``.

    Raises
    ------
    InvalidArgumentError
        If the ranks, or a rank's sub-batches, don't divide the record's batch.
    """
    runtime = place.runtime
    own_sequences(runtime, record.batch_size, f"{record.name}: its")
    trainer = record_trainer(runtime, record, place.checkpoint(record), **{"steps_in_flight": STEPS - 2, **options})
    # The guard is inside: a trainer that is closed waits for the other ranks.
    with trainer, guarded(runtime.comm) if runtime.comm else nullcontext():
        yield trainer


def own_batch(trainer: Trainer, seed: int, number: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return this rank's inputs and targets (B, T), from the generated batch of all ranks with that number."""
    runtime = trainer.runtime
    whole_batch = runtime.ranks * trainer.batch_size
    inputs, targets = generate_tokens(seed, number, whole_batch, trainer.seq_len, trainer.config.vocab_size)
    own = own_sequences(runtime, whole_batch, "the")
    return inputs[own], targets[own]


def named_tensors(trainer: Trainer, *groups: str) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of groups by names like ``qkvw[1]``; of several groups, by names like ``params/qkvw[1]``."""
    prefixes = {group: f"{group}/" if len(groups) > 1 else "" for group in groups}
    return {
        prefixes[group] + layer_name(name, layer): trainer.tensor(group, name, layer)
        for group, name, layer in execution_order(trainer.config.num_layers)
        if group in groups
    }


def trace_steps(trainer: Trainer, seed: int) -> Trace:
    """Submit ``STEPS`` steps of generated tokens without waiting between them, and return their trace."""
    for number in range(STEPS):
        trainer.submit(*own_batch(trainer, seed, number))
    return trainer.trace()


def parity(place: Place, *, record: str, sub_batches: int, reduction: str) -> CheckResult:
    """Compare every tensor of every step with a record."""
    golden = find_record(record)
    return check_parity(golden, place.runtime, place.checkpoint(golden), sub_batches=sub_batches, reduction=reduction)


def parity_with_llmc(place: Place, *, library: str, record: str, sub_batches: int, reduction: str) -> CheckResult:
    """Compare every tensor of every step with llm.c, which is run with the record's model, tokens and settings."""
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


def runtime_graph(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare StarPU's graph of two steps, read while their tasks are held back, with the required order."""
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        first, *held = (own_batch(trainer, seed, number) for number in range(STEPS - 1))
        trainer.submit(*first)
        trainer.wait()
        trainer.clear_trace()
        observer = Observer(trainer)
        observer.hold()
        for batch in held:
            trainer.submit(*batch)
        edges = observer.release()
        return check_runtime_graph(trainer.trace(), edges)


def observed_order(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the times of a run's tasks with the order that their accesses require, and their labels with the data."""
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        trace = trace_steps(trainer, seed)
    wrong = list(wrong_labels(trace, place.runtime.ranks))
    result = check_observed(trace)
    return replace(result, outcome=Outcome.FAILED, finding=f"{len(wrong)} labels: {wrong[0]}") if wrong else result


def tree(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the order of a tree reduction's additions with the one that is described."""
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        trace = trace_steps(trainer, seed)
    return check_tree(trace, sub_batches * place.runtime.ranks)


def reuse(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the critical path with that of the same task flow in which every step has buffers of its own."""
    with _traced_trainer(place, record, sub_batches, reduction) as trainer:
        trace = trace_steps(trainer, seed)
    return check_reuse(trace, durations=typical_durations(trace))


def accesses(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare each task's accesses to memory with those that it declared; only on 1x1."""
    with _traced_trainer(place, record, sub_batches, reduction, Instruments(audit=True)) as trainer:
        trace, observer = trace_steps(trainer, seed), Observer(trainer)
        return check_accesses(trace, observer.findings(), observer.counts())


def poison(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Train with all memory poisoned that a task or a step must not read before it is written."""
    with _traced_trainer(place, record, sub_batches, reduction, Instruments(poison=True)) as trainer:
        trace, observer = trace_steps(trainer, seed), Observer(trainer)
        return check_poison(trace, observer.findings(), observer.counts())


def gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> GradientErrorResult:
    """Compare every gradient of the second step with its sum in float64, or of the first step if one isn't finite.

    Such a gradient would make the parameters, and so the reference of the second step, not finite either.
    """
    golden = find_record(record)
    with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction) as trainer:
        number = 0
        trainer.step(*own_batch(trainer, seed, number))
        if _on_rank_0(trainer, partial(_are_gradients_finite, trainer.config.num_layers)):
            number = 1
            trainer.step(*own_batch(trainer, seed, number))
        inputs, _ = generate_tokens(seed, number, golden.batch_size, golden.seq_len, golden.model.vocab_size)
        return _on_rank_0(
            trainer,
            lambda tensor: check_gradients(
                tensor, trainer.config, inputs, sub_batches=place.runtime.ranks * sub_batches
            ),
        )


def losses_of_ranks(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> CheckResult:
    """Compare the mean losses of ``STEPS`` steps between ranks, each of which computes them from all ranks' losses."""
    golden = find_record(record)
    with new_trainer(place, golden, sub_batches=sub_batches, reduction=reduction, keep_activations=False) as trainer:
        losses = [trainer.step(*own_batch(trainer, seed, number)) for number in range(STEPS)]
        of_ranks = place.runtime.comm.allgather(losses) if place.runtime.comm else [losses]
    runs = {f"rank {rank}": {"mean_loss": np.array(values)} for rank, values in enumerate(of_ranks)}
    return replace(check_same_bits("losses of ranks", runs), unit="series of losses")


def write_gradients(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int, path: str) -> None:
    """Write all gradients of the second step to an array file (.npz), by names like ``qkvw[1]``."""
    golden = find_record(record)
    with _two_steps(place, golden, sub_batches, reduction, seed) as trainer:
        tensors = named_tensors(trainer, "grads")
    if place.runtime.rank == 0:
        np.savez(path, allow_pickle=False, **tensors)


def write_perturbed(
    place: Place,
    *,
    record: str,
    sub_batches: int,
    reduction: str,
    seed: int,
    max_delay_us: int,
    delay_seed: int,
    path: str,
) -> CheckResult:
    """Run ``STEPS`` steps with delays and write the final tensors to an array file (.npz), as ``params/qkvw[1]``.

    The result says whether the run kept the required order.
    """
    instruments = Instruments(max_delay_us=max_delay_us, delay_seed=delay_seed)
    with _traced_trainer(place, record, sub_batches, reduction, instruments) as trainer:
        trace = trace_steps(trainer, seed)
        tensors = named_tensors(trainer, "grads", "m", "v", "params")
    if max_delay_us:
        require_delays(trace, max_delay_us)
    np.savez(path, allow_pickle=False, **tensors)
    return check_observed(trace)


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


@contextmanager
def _two_steps(place: Place, record: GoldenRecord, sub_batches: int, reduction: str, seed: int) -> Iterator[Trainer]:
    """Make two steps, because the gradients of the first must not be part of those of the second."""
    with new_trainer(place, record, sub_batches=sub_batches, reduction=reduction) as trainer:
        for number in range(2):
            trainer.step(*own_batch(trainer, seed, number))
        yield trainer


def _are_gradients_finite(num_layers: int, tensor: ReadTensor) -> bool:
    keys = (key for key in execution_order(num_layers) if key[0] == "grads")
    return all(np.isfinite(tensor(*key)).all() for key in keys)


def _on_rank_0(trainer: Trainer, check: Callable[[ReadTensor], R]) -> R:
    """Return on all ranks the result of a check that rank 0 makes; the others take part in its reads of tensors."""
    comm = trainer.runtime.comm
    if comm is None:
        return check(trainer.tensor)
    if comm.Get_rank() > 0:
        while True:
            what, content = comm.bcast(None)
            if what == "result":
                result: R = content
                return result
            trainer.tensor(*content)

    def tensor(group: str, name: str, layer: int | None) -> NDArray[np.float32]:
        comm.bcast(("tensor", (group, name, layer)))
        return trainer.tensor(group, name, layer)

    result = check(tensor)
    comm.bcast(("result", result))
    return result
