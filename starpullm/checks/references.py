"""What a run is compared with, and where the expected values of a tensor come from when its bits differ.

Records mostly hold digests. For values this module is started as a command that trains again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.errors import StarpullmError
from starpullm.golden.records import GoldenRecord, split_layer, tensor_digest
from starpullm.processes.job import Job, run_job
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime
from starpullm.trainer import Instruments, Trainer

__all__ = ["ExpectedValues", "GoldenReference", "Reference", "record_trainer"]

RERUN_SECONDS = 300.0
"""Time limit of a run that is repeated for its values; 15 times what the 124M model was measured to take."""


@dataclass(frozen=True)
class ExpectedValues:
    """A tensor's expected values, and a phrase that says where they are from or, if they are None, why."""

    values: NDArray[np.float32] | None
    source: str


class Reference(Protocol):
    """What a run is compared with: a record of digests, and values on request."""

    @property
    def name(self) -> str:
        """Name of the reference, for messages and reports."""

    @property
    def record(self) -> GoldenRecord:
        """What llm.c computed."""

    def expected_values(self, step: int, group: str, tensor: str, found: str = "") -> ExpectedValues:
        """Return a tensor's values after a step, from 0.

        Parameters
        ----------
        step, group, tensor
            As in a record; a tensor is named like ``qkvw[1]``.
        found
            The digest that was found, for the message if the values aren't known.
        """


@dataclass(frozen=True)
class GoldenReference:
    """A golden record, and its model, from which a run can be repeated."""

    record: GoldenRecord
    checkpoint: Path
    name: ClassVar[str] = "golden record"

    def expected_values(self, step: int, group: str, tensor: str, found: str = "") -> ExpectedValues:
        """Return the record's values or, if it has none, those of a run on 1x1 with ref kernels and the same digest."""
        digest = self.record.steps[step].digests[group][tensor]
        values = self.record.raw_tensor(step, group, tensor)
        if values is not None:
            if tensor_digest(values) == digest:
                return ExpectedValues(values, "the record's")
            return ExpectedValues(None, f"{self.record.path}: its values have another digest than it says")
        try:
            values = _rerun(self.record, self.checkpoint, step, group, tensor)
        except StarpullmError as error:
            return ExpectedValues(None, f"a run on 1x1 with the ref kernels, for the values, failed: {error}")
        again = tensor_digest(values)
        if again == digest:
            return ExpectedValues(values, "from a run on 1x1 with the ref kernels, which has the record's digest")
        whose = "the digest that was found" if again == found else f"neither digest but {again}"
        return ExpectedValues(None, f"the record has a digest only, and a run on 1x1 with the ref kernels has {whose}")


def record_trainer(
    runtime: Runtime,
    record: GoldenRecord,
    checkpoint: Path,
    *,
    sub_batches: int = 1,
    reduction: str = "ordered",
    keep_activations: bool = True,
    steps_in_flight: int = 2,
    trace: bool = False,
    instruments: Instruments | None = None,
    resume: Path | None = None,
) -> Trainer:
    """Return a trainer with a record's settings, before its first step; over ranks with this rank's part of the batch.

    Parameters
    ----------
    runtime
        A runtime whose ranks divide the record's batch.
    record
        The settings.
    checkpoint
        The record's model.
    sub_batches, reduction, keep_activations, steps_in_flight, trace, instruments
        As for ``Trainer``.
    resume
        A folder of training states to start from, instead of the model.
    """
    return Trainer(
        runtime,
        checkpoint if resume is None else None,
        resume=resume,
        batch_size=record.batch_size // runtime.ranks,
        seq_len=record.seq_len,
        sub_batches=sub_batches,
        reduction=reduction,
        learning_rate=record.learning_rate,
        betas=(record.beta1, record.beta2),
        eps=record.eps,
        weight_decay=record.weight_decay,
        keep_activations=keep_activations,
        steps_in_flight=steps_in_flight,
        trace=trace,
        instruments=instruments,
    )


def _rerun(record: GoldenRecord, checkpoint: Path, step: int, group: str, tensor: str) -> NDArray[np.float32]:
    """Train up to a step in a child process, on 1x1 with the ref kernels, and return one of its tensors."""
    with tempfile.TemporaryDirectory(prefix="starpullm-rerun-") as directory:
        path = Path(directory, "values.npy")
        request = {"record": record.path, "checkpoint": checkpoint, "step": step, "group": group, "tensor": tensor}
        command = [sys.executable, "-P", "-m", __name__, json.dumps({**request, "path": path}, default=str)]
        run_job(Job(command, RERUN_SECONDS, environment={"STARPULLM_SIMD": "ref"})).completed()
        values: NDArray[np.float32] = np.load(path)
        return values


def _train_again(request: dict[str, Any]) -> None:
    """Do what ``_rerun`` asks its child process for."""
    record = GoldenRecord.load(request["record"])
    name, layer = split_layer(request["tensor"])
    with Runtime("1x1") as runtime, record_trainer(runtime, record, Path(request["checkpoint"])) as trainer:
        for number in range(request["step"] + 1):
            batch = generate_tokens(record.seed, number, record.batch_size, record.seq_len, record.model.vocab_size)
            trainer.step(*batch)
            report_phase("training", number + 1)
        np.save(request["path"], trainer.tensor(request["group"], name, layer))


if __name__ == "__main__":
    _train_again(json.loads(sys.argv[1]))
