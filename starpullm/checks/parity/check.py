"""Runs the steps of a record and compares the digest of every tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import bits_of, compare_bits
from starpullm.checks.parity.execution_order import execution_order
from starpullm.checks.parity.failure_text import DigestDifference, FirstDifference
from starpullm.checks.placement import PlacedResult, own_sequences, placement_fields
from starpullm.checks.references import ExpectedValues, GoldenReference, Reference, record_trainer
from starpullm.checks.result import Outcome, passed_if
from starpullm.checks.task_name import TaskName
from starpullm.data.generator import generate_tokens
from starpullm.golden.records import GoldenRecord, layer_name, tensor_digest
from starpullm.machine import libm_fingerprint
from starpullm.runtime import Runtime
from starpullm.trace import TaskRecord
from starpullm.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class ParityResult(PlacedResult):
    """How a run differs from a record; ``compared`` and ``measured`` count tensors.

    ``reference`` names what the run was compared with. ``differences`` are in the order of execution; ``first`` has the
    details of the first. ``different_functions`` are the libm functions with other bits than those of the record's
    libm. If there are any, or if ``matmul`` isn't ``"strict"``, nothing was run and the outcome is ``NOT_COMPARABLE``.
    """

    unit: str = "tensors"
    record: str
    reference: str
    steps: int
    differences: tuple[DigestDifference, ...]
    first: FirstDifference | None
    different_functions: tuple[str, ...]

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

    Over ranks all ranks must call this, and all get the same result. ``progress`` is called after each step.

    Parameters
    ----------
    checkpoint
        The record's model, from ``make_inputs``.
    sub_batches, reduction
        As for ``Trainer``; the number of sub-batches is that of one rank.
    reference
        Where expected values come from; by default the record is a golden one. Only that of rank 0 is used.

    Raises
    ------
    InvalidArgumentError
        If the ranks, or a rank's sub-batches, don't divide the record's batch.
    """
    own_sequences(runtime, record.batch_size, f"{record.name}: its")
    reference = reference or GoldenReference(record, checkpoint)
    different_functions = record.different_functions(libm_fingerprint())
    found = _Found()
    finding = _why_not_comparable(runtime, different_functions)
    outcome = Outcome.NOT_COMPARABLE
    if not finding:
        with record_trainer(
            runtime, record, checkpoint, sub_batches=sub_batches, reduction=reduction, trace=True
        ) as trainer:
            found = _run(record, trainer, progress)
        if found.differences:  # only rank 0 has any
            found.first = _first_difference(record, reference, found, sub_batches * runtime.ranks)
        if runtime.comm:
            found = runtime.comm.bcast(found)
        outcome = passed_if(not found.differences)
        finding = f"{found.compared} tensors over {record.num_steps} steps, {len(found.differences)} differ"
    return ParityResult(
        name="parity",
        outcome=outcome,
        finding=finding,
        compared=found.compared,
        measured=None if outcome is Outcome.NOT_COMPARABLE else len(found.differences),
        record=record.name,
        reference=reference.name,
        **placement_fields(runtime, sub_batches, reduction),
        steps=record.num_steps,
        differences=tuple(found.differences),
        first=found.first,
        different_functions=different_functions,
    )


def _why_not_comparable(runtime: Runtime, different_functions: Sequence[str]) -> str:
    if different_functions:
        return f"this libm has another {', '.join(different_functions)}"
    return "" if runtime.matmul == "strict" else f"matmuls by {runtime.matmul}, expected strict ones"


@dataclass
class _Found:
    """What rank 0 has compared and found; of the first tensor that differs also its values and last writers."""

    compared: int = 0
    differences: list[DigestDifference] = field(default_factory=list)
    values: NDArray[np.float32] | None = None
    writers: dict[str, TaskRecord] = field(default_factory=dict)
    first: FirstDifference | None = None


def _run(record: GoldenRecord, trainer: Trainer, progress: Callable[[], None] | None) -> _Found:
    """Train on a rank's own sequences and compare, on rank 0."""
    comm = trainer.runtime.comm
    own = own_sequences(trainer.runtime, record.batch_size, "the")
    found = _Found()
    for number in range(record.num_steps):
        inputs, targets = generate_tokens(
            record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size
        )
        trainer.clear_trace()
        loss = trainer.step(inputs[own], targets[own])
        known = len(found.differences)
        for difference, values in _differences(record, number, trainer, loss, found):
            if not found.differences:
                found.values = values
            found.differences.append(difference)
        first = found.differences[0] if found.differences and not known else None
        if comm:  # all ranks have to name the tasks that they ran
            first = comm.bcast(first)
        if first is not None:
            found.writers = _last_writers(trainer, first)
        if progress:
            progress()
    return found


def _differences(
    record: GoldenRecord, number: int, trainer: Trainer, loss: np.float32, found: _Found
) -> Iterator[tuple[DigestDifference, NDArray[np.float32]]]:
    """Yield the differences after a step with their values, and count the tensors; nothing on ranks above 0."""
    step = record.steps[number]
    for group, tensor, layer in execution_order(record.model.num_layers):
        values = trainer.tensor(group, tensor, layer)
        if trainer.runtime.rank > 0:
            continue
        found.compared += 1
        name = layer_name(tensor, layer)
        expected, digest = step.digests[group][name], tensor_digest(values)
        if digest != expected:
            yield DigestDifference(number, group, name, expected, digest), values
    if trainer.runtime.rank == 0 and bits_of(loss) != step.mean_loss_bits:
        yield DigestDifference(number, "loss", "mean_loss", step.mean_loss_bits, bits_of(loss)), np.array(loss)


def _last_writers(trainer: Trainer, difference: DigestDifference) -> dict[str, TaskRecord]:
    """Return the last task of this step that wrote each of a tensor's buffers, by the buffer's name.

    Every rank has the tasks of all ranks, but knows the workers of its own only.
    """
    group = difference.group
    writers = trainer.trace().last_writers(difference.tensor if group == "loss" else f"{group}/{difference.tensor}")
    if not trainer.runtime.comm:
        return writers
    of_ranks = trainer.runtime.comm.allgather(writers)
    return {name: of_ranks[task.rank][name] for name, task in writers.items()}


def _first_difference(
    record: GoldenRecord, reference: Reference, found: _Found, num_sub_batches: int
) -> FirstDifference:
    difference = found.differences[0]
    assert found.values is not None
    if difference.group == "loss":
        bits = np.array(int(difference.expected_digest, 16), np.uint32)
        expected = ExpectedValues(bits.view(np.float32), "the record's")
    else:
        expected = reference.expected_values(
            difference.step, difference.group, difference.tensor, difference.found_digest
        )
    values = expected.values
    compared = None if values is None else compare_bits(values.reshape(found.values.shape), found.values)
    writers = sorted(found.writers.items(), key=lambda entry: entry[1].id)  # buffers with their last tasks
    if not difference.group.startswith("activation"):
        writers = writers[-1:]  # parameters and their gradients have no parts by sub-batch
    elif compared is not None:
        part = compared.position[0] * num_sub_batches // record.batch_size
        writers = [(name, task) for name, task in writers if name.endswith(f"#{part}")]
    return FirstDifference(difference, expected.source, compared, tuple(TaskName.of(task) for _, task in writers))
