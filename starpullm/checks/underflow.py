"""Denormal gradients stay within their bounds, which they would not with flush-to-zero.

The values of the golden records are too large to show it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import find_record
from starpullm.checks.place import Place
from starpullm.checks.reduction import GradientErrorResult, check_gradients
from starpullm.checks.references import record_trainer
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.files.checkpoint import Checkpoint, write_checkpoint

_SCALE = np.float32(1e-19)
"""Factor of the parameters; the product of two is then below the smallest normal number, about 1e-38."""


def underflow(place: Place, *, record: str, sub_batches: int, reduction: str, seed: int) -> GradientErrorResult:
    """Compare every gradient of the first step with its sum in float64, in a model of very small parameters.

    ``compared`` counts denormal elements: without any, the gradients show nothing.
    """
    golden = find_record(record)
    parameters = {name: array * _SCALE for name, array in generate_parameters(golden.model, seed)}
    inputs, targets = generate_tokens(seed, 0, golden.batch_size, golden.seq_len, golden.model.vocab_size)
    with tempfile.TemporaryDirectory(dir=place.directory) as directory:
        checkpoint = Path(directory, "small.bin")
        write_checkpoint(checkpoint, Checkpoint(golden.model, parameters))
        with record_trainer(place.runtime, golden, checkpoint, sub_batches=sub_batches, reduction=reduction) as trainer:
            trainer.step(inputs, targets)
            result = check_gradients(trainer.tensor, trainer.config, inputs, sub_batches=sub_batches)
            gradients = [trainer.tensor("grads", name) for name in trainer.tensor_names("grads")]
    return replace(result, compared=count_denormals(gradients), unit="denormal elements")


def count_denormals(tensors: Iterable[NDArray[np.float32]]) -> int:
    """Return the number of elements that flush-to-zero would make 0."""
    smallest_normal = np.finfo(np.float32).smallest_normal
    return sum(int(np.count_nonzero((array != 0) & (np.abs(array) < smallest_normal))) for array in tensors)
