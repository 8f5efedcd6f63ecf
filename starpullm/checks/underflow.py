"""Denormal gradients stay within their bounds, which they would not with flush-to-zero.

The values of the golden records are too large to show it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.cases import REPRODUCIBLE, Case, find_record
from starpullm.checks.check import Needs, check
from starpullm.checks.place import Place
from starpullm.checks.reduction import GradientBounds
from starpullm.checks.references import record_trainer
from starpullm.checks.result import Result
from starpullm.data.generator import generate_parameters, generate_tokens
from starpullm.files.checkpoint import Checkpoint, write_checkpoint

_SCALE = np.float32(1e-19)
"""Factor of the parameters; the product of two is then below the smallest normal number, about 1e-38."""


@check
class DenormalGradients(GradientBounds):
    """Compare every gradient of the first step with its sum in float64, in a model of very small parameters.

    What is counted is denormal elements: without any, the gradients show nothing.
    """

    unit = "denormal elements"
    cannot_see = "errors of the activations, from which the float64 sums are computed"
    claim = "gradients that flush-to-zero would make 0 are within their error bounds too"
    needs = Needs(ranks=(1, 1), promises=REPRODUCIBLE, light=True)

    def run(self, place: Place, case: Case) -> Result:
        """Train one step."""
        golden = find_record(case.record)
        parameters = {name: array * _SCALE for name, array in generate_parameters(golden.model, case.seed)}
        inputs, targets = generate_tokens(case.seed, 0, golden.batch_size, golden.seq_len, golden.model.vocab_size)
        options: dict[str, Any] = {"sub_batches": case.sub_batches, "reduction": case.reduction}
        with tempfile.TemporaryDirectory(dir=place.directory) as directory:
            checkpoint = Path(directory, "small.bin")
            write_checkpoint(checkpoint, Checkpoint(golden.model, parameters))
            with record_trainer(place.runtime, golden, checkpoint, **options) as trainer:
                trainer.step(inputs, targets)
                errors = self.errors(trainer.tensor, trainer.config, inputs, case.sub_batches)
                gradients = [trainer.tensor("grads", name) for name in trainer.tensor_names("grads")]
        return self.of_errors(errors, count_denormals(gradients))


def count_denormals(tensors: Iterable[NDArray[np.float32]]) -> int:
    """Return the number of elements that flush-to-zero would make 0."""
    smallest_normal = np.finfo(np.float32).smallest_normal
    return sum(int(np.count_nonzero((array != 0) & (np.abs(array) < smallest_normal))) for array in tensors)
