"""What a run is compared with, and where the expected values of a tensor come from when its bits differ.

Records mostly hold digests. For values a child process trains again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from starpullm.data.generator import generate_tokens
from starpullm.errors import StarpullmError
from starpullm.golden.records import GoldenRecord, split_layer, tensor_digest
from starpullm.machine import libm_fingerprint
from starpullm.processes.children import Child
from starpullm.processes.progress import report_phase
from starpullm.runtime import Runtime
from starpullm.schedules import number_of_pipelines
from starpullm.trainer import Trainer

if TYPE_CHECKING:
    from starpullm.checks.llmc import LlmcReference

RERUN_SECONDS = 300.0
"""Time limit of a run that is repeated for its values; 15 times what the 124M model was measured to take."""


@dataclass(frozen=True)
class ExpectedValues:
    """A tensor's expected values, and a phrase that says where they are from or, if they are None, why."""

    values: NDArray[np.float32] | None
    source: str


@dataclass(frozen=True)
class GoldenReference:
    """A golden record, and its model, from which a run can be repeated."""

    record: GoldenRecord
    checkpoint: Path
    name: ClassVar[str] = "golden record"

    def expected_values(self, step: int, group: str, tensor: str, found: str = "") -> ExpectedValues:
        """Return the values of a tensor, named like ``qkvw[1]``, after a step, from 0.

        They are the record's or, if it has none, those of a run on 1x1 with ref kernels and the same digest. ``found``
        is the digest that was found, for the message if the values aren't known.
        """
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


Reference: TypeAlias = "GoldenReference | LlmcReference"
"""What a run is compared with: a record of digests, and values on request."""


def why_not_comparable(runtime: Runtime, record: GoldenRecord) -> str:
    """Return why a run on this machine needn't have a record's bits; empty if it has to have them."""
    different = record.different_functions(libm_fingerprint())
    if different:
        return f"this libm has another {', '.join(different)}"
    return "" if runtime.matmul == "strict" else f"matmuls by {runtime.matmul}, expected strict ones"


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


def _rerun(record: GoldenRecord, checkpoint: Path, step: int, group: str, tensor: str) -> NDArray[np.float32]:
    """Train up to a step in a child process, on 1x1 with the ref kernels, and return one of its tensors."""
    with tempfile.TemporaryDirectory(prefix="starpullm-rerun-") as directory:
        path = Path(directory, "values.npy")
        files = {"record": str(record.path), "checkpoint": str(checkpoint), "path": str(path)}
        arguments = {**files, "step": step, "group": group, "tensor": tensor}
        with Child("the run", _train_again, arguments, environment={"STARPULLM_SIMD": "ref"}) as child:
            child.start(RERUN_SECONDS).result()
        values: NDArray[np.float32] = np.load(path)
        return values


@contextmanager
def _train_again(
    comm: None, record: str, checkpoint: str, step: int, group: str, tensor: str, path: str
) -> Iterator[tuple[None, Callable[[object], None]]]:
    """Do what ``_rerun`` asks its child process for."""
    golden = GoldenRecord.load(record)
    name, layer = split_layer(tensor)
    with Runtime("1x1") as runtime, record_trainer(runtime, golden, Path(checkpoint)) as trainer:
        for number in range(step + 1):
            batch = generate_tokens(golden.seed, number, golden.batch_size, golden.seq_len, golden.model.vocab_size)
            trainer.step(*batch)
            report_phase("training", number + 1)
        np.save(path, trainer.tensor(group, name, layer))
    yield None, lambda request: None
