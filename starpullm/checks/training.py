"""Training as the checks do it: with a record's model and settings, on generated batches, which the ranks share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import Case, find_record
from starpullm.checks.execution_order import execution_order
from starpullm.checks.reference64 import ReadTensor
from starpullm.checks.references import record_trainer
from starpullm.data.generator import generate_checkpoint, generate_tokens, generated_tokens_sha256
from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.golden.records import GoldenRecord, layer_name
from starpullm.runtime import Runtime
from starpullm.schedules import number_of_pipelines
from starpullm.trace import Trace
from starpullm.trainer import Trainer

if TYPE_CHECKING:
    from starpullm.checks.check_context import CheckContext

R = TypeVar("R")

STEPS = 4
"""Steps of a traced run: the first one reuses nothing, and two more than may be in flight have to wait."""


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


def make_inputs(record: GoldenRecord, directory: Path) -> Path:
    """Generate the record's checkpoint in a directory, verify the hashes of checkpoint and tokens, and return its path.

    Another hash than the record's is a `FormatError`: nothing could be compared.
    """
    tokens = generated_tokens_sha256(
        record.seed, record.num_steps, record.batch_size, record.seq_len, record.model.vocab_size
    )
    if tokens != record.tokens_sha256:
        raise FormatError(f"{record.path}, key tokens_sha256: expected {tokens}, found {record.tokens_sha256}")
    path = directory / f"{record.name}.bin"
    checkpoint = generate_checkpoint(path, record.model, record.seed)
    if checkpoint != record.checkpoint_sha256:
        path.unlink()
        raise FormatError(
            f"{record.path}, key checkpoint_sha256: expected {checkpoint}, found {record.checkpoint_sha256}"
        )
    return path


def local_sequences(runtime: Runtime, batch_size: int, whose: str, stages: int | Sequence[int] = 1) -> slice:
    """Return which sequences of all ranks' batch this rank submits; messages speak of ``whose`` batch.

    An `InvalidArgumentError` is raised if the ranks don't divide it.
    """
    parts = number_of_pipelines(runtime.ranks, stages)
    if batch_size % parts:
        raise InvalidArgumentError(f"{whose} batch of {batch_size} can't be spread over {parts} ranks")
    size, part = batch_size // parts, runtime.rank * parts // runtime.ranks
    return slice(part * size, (part + 1) * size)


@contextmanager
def new_trainer(context: CheckContext, record: GoldenRecord, **options: Any) -> Iterator[Trainer]:
    """Provide a trainer with the record's model and settings, before its first step; options as ``record_trainer``.

    An `InvalidArgumentError` is raised if the ranks, or a rank's sub-batches, don't divide the record's batch.
    """
    runtime = context.runtime
    local_sequences(runtime, record.batch_size, f"{record.name}: its", options.get("stages", 1))
    trainer = record_trainer(runtime, record, context.checkpoint(record), **{"steps_in_flight": STEPS - 2, **options})
    with trainer:
        yield trainer


def local_batch(trainer: Trainer, seed: int, number: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return this rank's inputs and targets (B, T), from the generated batch of all ranks with that number."""
    runtime = trainer.runtime
    whole_batch = trainer.pipelines * trainer.batch_size
    inputs, targets = generate_tokens(seed, number, whole_batch, trainer.seq_len, trainer.config.vocab_size)
    own = local_sequences(runtime, whole_batch, "the", runtime.ranks // trainer.pipelines)
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
        trainer.submit(*local_batch(trainer, seed, number))
    return trainer.trace()


def case_trainer(context: CheckContext, case: Case, **options: Any) -> AbstractContextManager[Trainer]:
    """Provide the trainer of a case; options as ``new_trainer``."""
    return new_trainer(context, find_record(case.record), **{**case.settings, **options})


def traced_trainer(context: CheckContext, case: Case, **options: Any) -> AbstractContextManager[Trainer]:
    """Provide the trainer of a case whose trace is compared; it keeps no activations, as in training."""
    return case_trainer(context, case, keep_activations=False, trace=True, **options)


def on_rank_0(trainer: Trainer, check: Callable[[ReadTensor], R]) -> R:
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
