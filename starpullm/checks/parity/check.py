"""Runs the steps of a record and compares the digest of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import bits_of, compare_bits
from starpullm.checks.parity.execution_order import execution_order
from starpullm.checks.parity.failure_text import DigestDifference, FirstDifference
from starpullm.checks.placement import PlacedResult, own_sequences, placement_fields
from starpullm.checks.references import (
    ExpectedValues,
    GoldenReference,
    Reference,
    record_trainer,
)
from starpullm.checks.result import Outcome, json_value
from starpullm.checks.task_name import TaskName
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import GoldenRecord, layer_name, tensor_digest
from starpullm.machine import libm_fingerprint
from starpullm.runtime import Runtime
from starpullm.trace import TaskRecord
from starpullm.trainer import Trainer

__all__ = ["ParityResult", "check_parity"]


@dataclass(frozen=True, kw_only=True)
class ParityResult(PlacedResult):
    """How a run differs from a record; ``measured`` counts the tensors that differ.

    ``reference`` names what the run was compared with. ``differences`` are in the order of execution; ``first`` has the
    details of the first. ``different_functions`` are the libm functions with other bits than those of the record's
    libm. If there are any, or if ``matmul`` isn't ``"strict"``, nothing was run and the outcome is ``NOT_COMPARABLE``.
    """

    record: str
    reference: str
    num_steps: int
    num_tensors: int
    differences: tuple[DigestDifference, ...]
    first: FirstDifference | None
    different_functions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values, in the form that ``starpullm parity --json`` prints."""
        return {
            "record": self.record,
            "reference": self.reference,
            "partition": self.partition,
            "scheduler": self.scheduler,
            "ranks": self.ranks,
            "sub_batches": self.sub_batches,
            "reduction": self.reduction,
            "matmul": self.matmul,
            "outcome": self.outcome.value,
            "steps": self.num_steps,
            "tensors": self.num_tensors,
            "differences": json_value(self.differences),
            "first": json_value(self.first),
            "different_functions": list(self.different_functions),
        }

    def detail_lines(self) -> Iterator[str]:
        """Yield the description of the first tensor that differs, and the names of the others."""
        if self.first is not None:
            yield from self.first.lines()
        yield from (f"then: {difference}" for difference in self.differences[1:])


def check_parity(
    record: GoldenRecord,
    runtime: Runtime,
    checkpoint: Path,
    *,
    sub_batches: int = 1,
    reduction: str = "ordered",
    reference: Reference | None = None,
    progress: Callable[[], None] | None = None,
) -> ParityResult:
    """Run a record's steps on a runtime and compare all six groups of tensors after each step.

    Parameters
    ----------
    record
        What llm.c computed.
    runtime
        Where to run; over ranks all ranks must call this, and all get the same result.
    checkpoint
        The record's model, from ``make_inputs``.
    sub_batches, reduction
        As for ``Trainer``; the number of sub-batches is that of one rank.
    reference
        Where expected values come from; by default the record is a golden one. Only that of rank 0 is used.
    progress
        Called after each step.

    Raises
    ------
    InvalidArgumentError
        If the ranks, or a rank's sub-batches, don't divide the record's batch.
    """
    own = own_sequences(runtime, record.batch_size, f"{record.name}: its")
    reference = reference or GoldenReference(record, checkpoint)
    different_functions = record.different_functions(libm_fingerprint())
    differences: list[DigestDifference] = []
    first: FirstDifference | None = None
    num_tensors = 0
    finding = _why_not_comparable(runtime, different_functions)
    if finding:
        outcome = Outcome.NOT_COMPARABLE
    else:
        num_tensors = sum(len(tensors) for step in record.steps for tensors in step.digests.values())
        with record_trainer(
            runtime, record, checkpoint, sub_batches=sub_batches, reduction=reduction, trace=True
        ) as trainer:
            differences, evidence = _run(record, trainer, own, progress)
        if evidence is not None:
            first = _first_difference(record, reference, evidence)
        if runtime.comm:  # every rank reads the same tensors; rank 0 compares
            differences, first = runtime.comm.bcast((differences, first))
        outcome = Outcome.FAILED if differences else Outcome.PASSED
        finding = f"{num_tensors} tensors over {record.num_steps} steps, {len(differences)} differ"
    return ParityResult(
        name="parity",
        outcome=outcome,
        finding=finding,
        measured=None if outcome is Outcome.NOT_COMPARABLE else len(differences),
        limit=0,
        record=record.name,
        reference=reference.name,
        **placement_fields(runtime, sub_batches, reduction),
        num_steps=record.num_steps,
        num_tensors=num_tensors,
        differences=tuple(differences),
        first=first,
        different_functions=different_functions,
    )


def _why_not_comparable(runtime: Runtime, different_functions: Sequence[str]) -> str:
    if different_functions:
        return f"this libm has another {', '.join(different_functions)}"
    return "" if runtime.matmul == "strict" else f"matmuls by {runtime.matmul}, expected strict ones"


class _Evidence(NamedTuple):
    """What describes the first tensor that differs; ``writers`` are the last ones, by the names of its buffers."""

    difference: DigestDifference
    found: NDArray[np.float32]
    writers: dict[str, TaskRecord]
    sub_batches: int


def _run(
    record: GoldenRecord, trainer: Trainer, own: slice, progress: Callable[[], None] | None
) -> tuple[list[DigestDifference], _Evidence | None]:
    """Train on a rank's own sequences and return the differences, which only rank 0 knows."""
    comm = trainer.runtime.comm
    differences: list[DigestDifference] = []
    found: NDArray[np.float32] | None = None
    evidence: _Evidence | None = None
    for number in range(record.num_steps):
        inputs, targets = generate_tokens(
            record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size
        )
        trainer.clear_trace()
        loss = trainer.step(inputs[own], targets[own])
        trainer.gather()
        known = len(differences)
        for difference, values in _differences(record, number, trainer, loss):
            differences.append(difference)
            if found is None:
                found = values
        first = differences[0] if differences and not known else None
        if comm:  # all ranks have to name the tasks that they ran
            first = comm.bcast(first)
        if first is not None:
            writers = _last_writers(trainer, first)
            if found is not None:
                evidence = _Evidence(first, found, writers, trainer.sub_batches * trainer.runtime.ranks)
        if progress:
            progress()
    return differences, evidence


def _differences(
    record: GoldenRecord, number: int, trainer: Trainer, loss: np.float32
) -> Iterator[tuple[DigestDifference, NDArray[np.float32]]]:
    """Yield the differences after a step with the values that were found; nothing on ranks above 0."""
    step = record.steps[number]
    for group, tensor, layer in execution_order(record.model.num_layers):
        values = trainer.tensor(group, tensor, layer)
        if trainer.runtime.rank > 0:
            continue
        name = layer_name(tensor, layer)
        expected, found = step.digests[group][name], tensor_digest(values)
        if found != expected:
            yield DigestDifference(number, group, name, expected, found), values
    if trainer.runtime.rank == 0 and bits_of(loss) != step.mean_loss_bits:
        yield DigestDifference(number, "loss", "mean_loss", step.mean_loss_bits, bits_of(loss)), np.array(loss)


def _last_writers(trainer: Trainer, difference: DigestDifference) -> dict[str, TaskRecord]:
    """Return the last task of this step that wrote each of a tensor's buffers, by the buffer's name.

    Every rank has recorded all tasks, but it knows the workers of its own tasks only.
    """
    group = difference.group
    writers = trainer.trace().last_writers(difference.tensor if group == "loss" else f"{group}/{difference.tensor}")
    if not trainer.runtime.comm:
        return writers
    of_ranks = trainer.runtime.comm.allgather(writers)
    return {name: of_ranks[task.rank][name] for name, task in writers.items()}


def _first_difference(record: GoldenRecord, reference: Reference, evidence: _Evidence) -> FirstDifference:
    difference = evidence.difference
    if difference.group == "loss":
        bits = np.array(int(difference.expected_digest, 16), np.uint32)
        expected = ExpectedValues(bits.view(np.float32), "the record's")
    else:
        expected = reference.expected_values(
            difference.step, difference.group, difference.tensor, difference.found_digest
        )
    values = expected.values
    compared = None if values is None else compare_bits(values.reshape(evidence.found.shape), evidence.found)
    writers = sorted(evidence.writers.items(), key=lambda entry: entry[1].id)  # buffers with their last tasks
    if not difference.group.startswith("activation"):
        writers = writers[-1:]  # parameters and their gradients have no parts by sub-batch
    elif compared is not None:
        part = compared.position[0] * evidence.sub_batches // record.batch_size
        writers = [(name, task) for name, task in writers if name.endswith(f"#{part}")]
    return FirstDifference(difference, expected.source, compared, tuple(TaskName.of(task) for _, task in writers))
