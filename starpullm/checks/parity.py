"""Bitwise parity with llm.c: every tensor of every step of a run against a golden record, with no tolerance.

``starpullm parity`` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from starpullm.checks.result import CheckResult, Outcome
from starpullm.data import generate_checkpoint, generate_tokens, generated_tokens_sha256
from starpullm.errors import FormatError, InvalidArgumentError
from starpullm.machine import libm_fingerprint
from starpullm.records import GoldenRecord, tensor_digest
from starpullm.runtime import Runtime
from starpullm.trainer import Trainer

__all__ = ["ParityResult", "TensorDifference", "check_parity", "execution_order", "make_inputs"]


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


@dataclass(frozen=True, kw_only=True)
class ParityResult(CheckResult):
    """How a run compares with a record; ``measured`` counts the tensors that differ.

    ``differences`` stand in order of execution, the first first. ``different_functions`` are the libm functions whose
    bits aren't those that the record was made with: then nothing was run, and the outcome is ``NOT_COMPARABLE``.
    """

    record: str
    partition: str
    scheduler: str
    ranks: int
    sub_batches: int
    reduction: str
    num_steps: int
    num_tensors: int
    differences: tuple[TensorDifference, ...]
    different_functions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values, in the form that ``starpullm parity --json`` prints."""
        return {
            "record": self.record,
            "partition": self.partition,
            "scheduler": self.scheduler,
            "ranks": self.ranks,
            "sub_batches": self.sub_batches,
            "reduction": self.reduction,
            "outcome": self.outcome.value,
            "steps": self.num_steps,
            "tensors": self.num_tensors,
            "differences": [
                {
                    "step": difference.step,
                    "group": difference.group,
                    "tensor": difference.tensor,
                    "expected_digest": difference.expected_digest,
                    "found_digest": difference.found_digest,
                }
                for difference in self.differences
            ],
            "different_functions": list(self.different_functions),
        }

    def detail_lines(self) -> Iterator[str]:
        """Yield the tensors that differ."""
        yield from map(str, self.differences)


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
    different_functions = record.different_functions(libm_fingerprint())
    differences: list[TensorDifference] = []
    if different_functions:
        outcome, num_tensors = Outcome.NOT_COMPARABLE, 0
        finding = f"this libm has another {', '.join(different_functions)}"
    else:
        num_tensors = sum(len(tensors) for step in record.steps for tensors in step.digests.values())
        differences.extend(_differences(record, runtime, checkpoint, sub_batches, reduction, progress))
        if runtime.comm:  # every rank reads the same tensors; rank 0 compares
            differences = runtime.comm.bcast(differences)
        outcome = Outcome.FAILED if differences else Outcome.PASSED
        finding = f"{num_tensors} tensors over {record.num_steps} steps, {len(differences)} differ"
    return ParityResult(
        name="parity",
        outcome=outcome,
        finding=finding,
        measured=None if different_functions else len(differences),
        limit=0,
        record=record.name,
        partition=str(runtime.partition),
        scheduler=runtime.scheduler,
        ranks=runtime.ranks,
        sub_batches=sub_batches,
        reduction=reduction,
        num_steps=record.num_steps,
        num_tensors=num_tensors,
        differences=tuple(differences),
        different_functions=different_functions,
    )


def _differences(
    record: GoldenRecord,
    runtime: Runtime,
    checkpoint: Path,
    sub_batches: int,
    reduction: str,
    progress: Callable[[], None] | None,
) -> Iterator[TensorDifference]:
    batch_size = record.batch_size // runtime.ranks
    own = slice(runtime.rank * batch_size, (runtime.rank + 1) * batch_size)
    with Trainer(
        runtime,
        checkpoint,
        batch_size=batch_size,
        seq_len=record.seq_len,
        sub_batches=sub_batches,
        reduction=reduction,
        learning_rate=record.learning_rate,
        betas=(record.beta1, record.beta2),
        eps=record.eps,
        weight_decay=record.weight_decay,
        keep_activations=True,
    ) as trainer:
        for number, step in enumerate(record.steps):
            inputs, targets = generate_tokens(
                record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size
            )
            loss = trainer.step(inputs[own], targets[own])
            trainer.gather()
            for group, tensor, layer in execution_order(record.model.num_layers):
                values = trainer.tensor(group, tensor, layer)
                if runtime.rank > 0:
                    continue
                name = tensor if layer is None else f"{tensor}[{layer}]"
                expected, found = step.digests[group][name], tensor_digest(values)
                if found != expected:
                    yield TensorDifference(number, group, name, expected, found)
            loss_bits = f"{loss.view(np.uint32):08x}"
            if loss_bits != step.mean_loss_bits:
                yield TensorDifference(number, "loss", "mean_loss", step.mean_loss_bits, loss_bits)
            if progress:
                progress()


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
