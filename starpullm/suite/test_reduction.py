"""Gradients are within the error bounds of their sums, and have the same bits if their reduction promises that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.checks import runs
from starpullm.checks.same_bits import check_same_bits
from starpullm.checks.underflow import underflow
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case, SharedBits

pytestmark = pytest.mark.starpullm_reduction


@pytest.mark.starpullm_over_ranks
def test_gradients_are_within_their_bounds(
    starpullm_check: Checker, case: Case, starpullm_validation: Validation
) -> None:
    """Each parameter's gradient is compared with its sum in float64."""
    starpullm_check(runs.gradients, **case._asdict(), seed=starpullm_validation.seed)


def test_the_tree_adds_in_the_described_order(
    check_on_one_worker: Checker, tree_case: Case, starpullm_validation: Validation
) -> None:
    """Sub-batches 0 and 1, 2 and 3, then the sums of two, and so on, in the trace of steps."""
    check_on_one_worker(runs.tree, **tree_case._asdict(), seed=starpullm_validation.seed)


def test_denormal_gradients_are_within_their_bounds(
    starpullm_check: Checker, light_case: Case, starpullm_validation: Validation
) -> None:
    """The same, with a model whose gradients would be 0 with flush-to-zero."""
    starpullm_check(underflow, **light_case._asdict(), seed=starpullm_validation.seed)


@pytest.mark.starpullm_over_ranks
def test_bits_are_the_same_everywhere(
    request: pytest.FixtureRequest, starpullm_validation: Validation, shared_bits: SharedBits, tmp_path: Path
) -> None:
    """On all partitions, schedulers and ranks; for ``ordered`` also with all numbers of sub-batches."""
    checker = Checker(starpullm_validation, request.node, None)
    ranks = starpullm_validation.ranks_of(request.node)
    configurations = starpullm_validation.configurations(ranks)
    places = [(configuration, count) for configuration in configurations for count in shared_bits.sub_batches]
    if ranks > 1:  # also one process with the sub-batches of all ranks
        alone = starpullm_validation.configurations()
        places += [(configuration, ranks * count) for configuration in alone for count in shared_bits.sub_batches]
    tensors: dict[str, dict[str, NDArray[np.float32]]] = {}
    for configuration, sub_batches in places:
        path = tmp_path / f"{len(tensors)}.npz"
        checker.run(
            configuration,
            runs.write_gradients,
            record=shared_bits.record,
            sub_batches=sub_batches,
            reduction=shared_bits.reduction,
            seed=starpullm_validation.seed,
            path=str(path),
        )
        with np.load(path) as arrays:
            tensors[f"{configuration}, sub-batches {sub_batches}"] = dict(arrays)
        path.unlink()
    checker.judge(check_same_bits("bit stability", tensors))
