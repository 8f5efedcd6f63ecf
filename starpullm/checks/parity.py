"""Bitwise parity with llm.c: every tensor of every step of a run against a record of llm.c's, with no tolerance.

``starpullm parity`` and the suite call it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.bits import BitDifference, bits_of, compare_bits
from starpullm.checks.dependencies import TaskName
from starpullm.checks.references import ExpectedValues, GoldenReference, Reference, record_trainer
from starpullm.checks.result import CheckResult, Outcome, json_value
from starpullm.data.generator import generate_checkpoint, generate_tokens, generated_tokens_sha256
from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.golden.records import GoldenRecord, tensor_digest
from starpullm.machine import libm_fingerprint
from starpullm.runtime import Runtime
from starpullm.trace import TaskRecord
from starpullm.trainer import Trainer

__all__ = [
    "FirstDifference",
    "ParityResult",
    "TensorDifference",
    "check_parity",
    "execution_order",
    "make_inputs",
]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor whose bits aren't the record's; ``step`` counts from 0, ``tensor`` is named like ``qkvw[1]``.

    The digests are the record's, of the values; for the mean loss (group ``loss``) they are its bits.
    """

    step: int
    group: str
    tensor: str
    expected_digest: str
    found_digest: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.group}/{self.tensor}"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Everything that is known of the tensor that differs first in order of execution.

    Parameters
    ----------
    difference
        Which.
    source
        Whose the expected values are, or why they aren't known.
    bits
        The elements that differ, if the expected values are known.
    writers
        The tasks that wrote it last: the one that wrote the first differing element, or if the element isn't known
        that of each part of the tensor that has a buffer of its own. None: no task wrote it in that step.
    """

    difference: TensorDifference
    source: str
    bits: BitDifference | None
    writers: tuple[TaskName, ...]

    def lines(self) -> Iterator[str]:
        """Yield it in words."""
        yield f"first: {self.difference}"
        if self.bits is None:
            yield f"  expected digest {self.difference.expected_digest}, found {self.difference.found_digest}"
        else:
            yield from (f"  {line}" for line in self.bits.lines())
        yield f"  expected values: {self.source}"
        for writer in self.writers:
            yield f"  written last by {writer} on worker {writer.worker} of rank {writer.rank}"
        if not self.writers:
            yield "  written by no task of this step"


@dataclass(frozen=True, kw_only=True)
class ParityResult(CheckResult):
    """How a run compares with a record; ``measured`` counts the tensors that differ.

    ``reference`` says what it was compared with. ``differences`` stand in order of execution; ``first`` has the details
    of the first. ``different_functions`` are the libm functions whose bits aren't those that the record was made with:
    then nothing was run, and the outcome is ``NOT_COMPARABLE``. So it is if ``matmul`` isn't
    ``"strict"``.
    """

    record: str
    reference: str
    partition: str
    scheduler: str
    ranks: int
    sub_batches: int
    reduction: str
    matmul: str
    num_steps: int
    num_tensors: int
    differences: tuple[TensorDifference, ...]
    first: FirstDifference | None
    different_functions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, in the form that ``starpullm parity --json`` prints."""
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
        """Yield what is known of the first tensor that differs, and the names of the others."""
        if self.first is not None:
            yield from self.first.lines()
        yield from (f"then: {difference}" for difference in self.differences[1:])


def make_inputs(record: GoldenRecord, directory: Path) -> Path:
    """Generate the record's checkpoint in a directory and return its path, having checked it and the tokens.

    Raises
    ------
    FormatError
        If the hash of the generated checkpoint or tokens isn't the record's: nothing could be compared then.
    FileError
        If the checkpoint can't be written.
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
    """Run a record's steps on a runtime and compare all six groups of tensors after each.

    Parameters
    ----------
    record
        What llm.c computed.
    runtime
        Where to run; over ranks every rank calls this and gets the same result.
    checkpoint
        The record's model, from ``make_inputs``.
    sub_batches, reduction
        As ``Trainer``'s, the sub-batches those of one rank.
    reference
        Where the record is from, and its values; by default it is a golden one. Only rank 0's is asked.
    progress
        Called after each step.

    Raises
    ------
    InvalidArgumentError
        If the ranks, or a rank's sub-batches, don't divide the record's batch.
    """
    if record.batch_size % runtime.ranks:
        raise InvalidArgumentError(
            f"{record.name}: its batch of {record.batch_size} can't be spread over {runtime.ranks} ranks"
        )
    reference = reference or GoldenReference(record, checkpoint)
    different_functions = record.different_functions(libm_fingerprint())
    differences: list[TensorDifference] = []
    first: FirstDifference | None = None
    if different_functions:
        outcome, num_tensors = Outcome.NOT_COMPARABLE, 0
        finding = f"this libm has another {', '.join(different_functions)}"
    elif runtime.matmul != "strict":
        outcome, num_tensors = Outcome.NOT_COMPARABLE, 0
        finding = f"matmuls by {runtime.matmul}, expected strict ones"
    else:
        num_tensors = sum(len(tensors) for step in record.steps for tensors in step.digests.values())
        differences, evidence = _run(record, runtime, checkpoint, sub_batches, reduction, progress)
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
        partition=str(runtime.partition),
        scheduler=runtime.scheduler,
        ranks=runtime.ranks,
        sub_batches=sub_batches,
        reduction=reduction,
        matmul=runtime.matmul,
        num_steps=record.num_steps,
        num_tensors=num_tensors,
        differences=tuple(differences),
        first=first,
        different_functions=different_functions,
    )


class _Evidence(NamedTuple):
    """What has to be kept of the first tensor that differs; the last writers by the buffers' names."""

    difference: TensorDifference
    found: NDArray[np.float32]
    writers: dict[str, TaskRecord]
    sub_batches: int


def _run(
    record: GoldenRecord,
    runtime: Runtime,
    checkpoint: Path,
    sub_batches: int,
    reduction: str,
    progress: Callable[[], None] | None,
) -> tuple[list[TensorDifference], _Evidence | None]:
    """Train, and return what differs; over ranks only rank 0 knows."""
    batch_size = record.batch_size // runtime.ranks
    own = slice(runtime.rank * batch_size, (runtime.rank + 1) * batch_size)
    differences: list[TensorDifference] = []
    evidence: _Evidence | None = None
    with record_trainer(
        runtime, record, checkpoint, sub_batches=sub_batches, reduction=reduction, trace=True
    ) as trainer:
        for number in range(record.num_steps):
            inputs, targets = generate_tokens(
                record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size
            )
            trainer.clear_trace()
            loss = trainer.step(inputs[own], targets[own])
            trainer.gather()
            known = len(differences)
            found: NDArray[np.float32] | None = None
            for difference, values in _differences(record, number, trainer, loss):
                differences.append(difference)
                if found is None:
                    found = values
            first_known = _agreed(runtime, differences[0] if differences and not known else None)
            if first_known is not None:
                writers = _last_writers(trainer, first_known)
                if found is not None:
                    evidence = _Evidence(first_known, found, writers, sub_batches * runtime.ranks)
            if progress:
                progress()
    return differences, evidence


def _differences(
    record: GoldenRecord, number: int, trainer: Trainer, loss: np.float32
) -> Iterator[tuple[TensorDifference, NDArray[np.float32]]]:
    """Yield what differs after a step, with what was found; on other ranks than the first nothing."""
    step = record.steps[number]
    for group, tensor, layer in execution_order(record.model.num_layers):
        values = trainer.tensor(group, tensor, layer)
        if trainer.runtime.rank > 0:
            continue
        name = tensor if layer is None else f"{tensor}[{layer}]"
        expected, found = step.digests[group][name], tensor_digest(values)
        if found != expected:
            yield TensorDifference(number, group, name, expected, found), values
    if trainer.runtime.rank == 0 and bits_of(loss) != step.mean_loss_bits:
        yield TensorDifference(number, "loss", "mean_loss", step.mean_loss_bits, bits_of(loss)), np.array(loss)


def _agreed(runtime: Runtime, difference: TensorDifference | None) -> TensorDifference | None:
    """Return rank 0's value on every rank."""
    if runtime.comm:
        difference = runtime.comm.bcast(difference)
    return difference


def _last_writers(trainer: Trainer, difference: TensorDifference) -> dict[str, TaskRecord]:
    """Return the last tasks of this step that wrote a tensor, by the names of its buffers.

    Every rank has recorded every task, but only its own tasks' workers.
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
    writers = sorted(evidence.writers.items(), key=lambda entry: entry[1].id)
    if not difference.group.startswith("activation"):
        writers = writers[-1:]  # the parts of a gradient become one
    elif compared is not None:
        part = compared.position[0] * evidence.sub_batches // record.batch_size
        writers = [(name, task) for name, task in writers if name.endswith(f"#{part}")]
    names = (
        TaskName(task.id, task.operation, task.step, task.sub_batch, task.layer, task.rank, task.worker)
        for _, task in writers
    )
    return FirstDifference(difference, expected.source, compared, tuple(names))


# One block of the model, forward: the activations as they are written.
_BLOCK_FORWARD = (
    "ln1 ln1_mean ln1_rstd qkv preatt att atty attproj residual2 ln2 ln2_mean ln2_rstd fch fch_gelu fcproj residual3"
).split()

# The same, backward: activation gradients, and after an operation the parameters (marked =) that it has gradients of.
# What is accumulated into twice stands where it is complete.
_BLOCK_BACKWARD = (
    "fcproj fch_gelu =fcprojw =fcprojb fch ln2 =fcw =fcb residual2 =ln2w =ln2b attproj atty =attprojw =attprojb "
    "att preatt qkv ln1 =qkvw =qkvb =ln1w =ln1b"
).split()

# Nothing is accumulated into their gradients.
_BLOCK_CONSTANT = "ln1_mean ln1_rstd ln2_mean ln2_rstd".split()

_BLOCK_PARAMETERS = "ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb".split()


def execution_order(num_layers: int) -> Iterator[tuple[str, str, int | None]]:
    """Yield group, tensor and layer (None: it exists once) of a step's tensors, in order of their completion.

    So the first that differs is the nearest to the cause: forward, backward from the last block, then the update.
    """
    activations, grads = "activations", "activation_grads"
    yield activations, "encoded", None
    for layer in range(num_layers):
        for name in _BLOCK_FORWARD:
            yield activations, name, layer
    for name in "lnf lnf_mean lnf_rstd logits probs losses".split():
        yield activations, name, None

    for name in "losses probs logits lnf lnf_mean lnf_rstd".split():
        yield grads, name, None
    yield "grads", "lnfw", None
    yield "grads", "lnfb", None
    for layer in reversed(range(num_layers)):
        # residual3's gradient is complete once the block above, or lnf, has added to it.
        yield grads, "residual3", layer
        for name in _BLOCK_BACKWARD:
            yield ("grads", name[1:], layer) if name.startswith("=") else (grads, name, layer)
        for name in _BLOCK_CONSTANT:
            yield grads, name, layer
    yield grads, "encoded", None
    yield "grads", "wte", None
    yield "grads", "wpe", None

    for group in ("m", "v", "params"):
        yield group, "wte", None
        yield group, "wpe", None
        for layer in range(num_layers):
            for name in _BLOCK_PARAMETERS:
                yield group, name, layer
        yield group, "lnfw", None
        yield group, "lnfb", None
