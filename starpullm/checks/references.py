"""What a run is compared with, and where the expected values of a tensor come from when its bits differ.

Records hold digests. For values the plain sequential model trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import LIGHT_PARAMETERS
from starpullm.data.generator import generate_tokens
from starpullm.errors import RuntimeFailureError
from starpullm.files.checkpoint import read_checkpoint
from starpullm.files.model import num_parameters
from starpullm.golden.plain import PlainModel, Settings, new_state
from starpullm.golden.records import GoldenRecord, digest_of_steps, split_layer, step_results, tensor_digest
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime
from starpullm.schedules import number_of_pipelines
from starpullm.trainer import Trainer

if TYPE_CHECKING:
    from starpullm.checks.llmc_reference import LlmcReference


@dataclass(frozen=True)
class ExpectedValues:
    """A tensor's expected values, and a phrase that says where they are from or, if they are None, why."""

    values: NDArray[np.float32] | None
    source: str


@dataclass(frozen=True)
class GoldenReference:
    """A record, and its model, which the plain model can train."""

    record: GoldenRecord
    checkpoint: Path
    platform_functions: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the reference, for messages and reports."""
        return self.record.origin

    def expected_values(self, step: int, group: str, tensor: str) -> ExpectedValues:
        """Return the values of a tensor, named like ``qkvw[1]``, after a step, from 0: those of the plain model.

        There are none if its digest isn't the record's, or if the model has more than `LIGHT_PARAMETERS` parameters.
        """
        record = self.record
        digest = record.steps[step].digests[group][tensor]
        if num_parameters(record.model) > LIGHT_PARAMETERS:
            return ExpectedValues(None, "the record has a digest only, and the model is large for the plain one")
        model = plain_model(record, self.checkpoint)
        for _ in islice(plain_steps(record, model), step + 1):
            pass
        name, layer = split_layer(tensor)
        values = model.tensor(group, name, layer)
        if tensor_digest(values) != digest:
            return ExpectedValues(None, "the record has a digest only, and the plain model has another one")
        return ExpectedValues(values, "from the plain sequential model, which has the record's digest")


Reference: TypeAlias = "GoldenReference | LlmcReference"
"""What a run is compared with: a record of digests, and values on request."""


def why_not_comparable(runtime: Runtime) -> str:
    """Return why a run needn't have a record's bits; empty if it has to have them."""
    return "" if runtime.matmul == runtime.arithmetic else f"matmuls by {runtime.matmul}, expected strict ones"


def record_trainer(
    runtime: Runtime, record: GoldenRecord, checkpoint: Path, *, resume: Path | None = None, **options: Any
) -> Trainer:
    """Return a trainer with a record's model and settings, before its first step; the ranks divide the batch.

    It keeps activations; other options are those of ``Trainer``.
    """
    return Trainer(
        runtime,
        checkpoint if resume is None else None,
        resume=resume,
        batch_size=record.batch_size // number_of_pipelines(runtime.ranks, options.get("stages", 1)),
        seq_len=record.seq_len,
        learning_rate=record.learning_rate,
        betas=(record.beta1, record.beta2),
        eps=record.eps,
        weight_decay=record.weight_decay,
        **{"keep_activations": True, **options},
    )


def plain_model(record: GoldenRecord, checkpoint: Path) -> PlainModel:
    """Return the plain model with a record's model and settings, before its first step."""
    state = new_state(record.model, read_checkpoint(checkpoint).parameters)
    settings = Settings(record.learning_rate, (record.beta1, record.beta2), record.eps, record.weight_decay)
    return PlainModel(record.model, state, record.batch_size, record.seq_len, settings, record.arithmetic)


def of_arithmetic(record: GoldenRecord, arithmetic: str, checkpoint: Path) -> GoldenRecord:
    """Return the record with the results of an arithmetic: if it isn't strict, those of the plain model.

    A `RuntimeFailureError` is raised if these aren't llm.c's, of which the record has a digest.
    """
    if arithmetic == record.arithmetic:
        return record
    steps = _plain_results(record.path, arithmetic, checkpoint)
    if record.fused_sha256 not in ("", found := digest_of_steps(steps)):
        raise RuntimeFailureError(
            f"{record.path}: the plain model's fused results have the digest {found}, expected llm.c's, "
            f"{record.fused_sha256}"
        )
    return replace(record, arithmetic=arithmetic, origin=f"plain model, {arithmetic}").with_steps(steps)


@lru_cache(maxsize=1)  # runs with one record follow each other
def _plain_results(path: Path, arithmetic: str, checkpoint: Path) -> list[dict[str, Any]]:
    record = replace(GoldenRecord.load(path, with_results=False), arithmetic=arithmetic)
    model = plain_model(record, checkpoint)
    return [step_results(loss, model.groups) for loss in plain_steps(record, model)]


def plain_steps(record: GoldenRecord, model: PlainModel) -> Iterator[np.float32]:
    """Train the plain model with a record's tokens, and yield the mean loss after each step."""
    for number in range(record.num_steps):
        report_phase("training the plain model", number)
        yield model.step(
            *generate_tokens(record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size)
        )
