"""Neither the scheduler nor random delays in tasks change a bit.

A test's name contains its scheduler and the seed of its delays, so ``-k`` or ``--lf`` with the same
``--starpullm-seed`` repeats it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from starpullm.checks import runs
from starpullm.checks.isolation import RuntimeConfiguration
from starpullm.checks.same_bits import MAX_DELAY_US, check_same_bits
from starpullm.pytest_plugin import Checker, Validation

from .conftest import Case

pytestmark = pytest.mark.starpullm_dependencies

Tensors = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def plain_runs() -> dict[Case, Tensors]:
    """Provide the tensors of unperturbed runs by their case; the tests fill it."""
    return {}


def test_perturbed_run_has_the_bits_of_a_plain_one(
    request: pytest.FixtureRequest,
    starpullm_validation: Validation,
    plain_runs: dict[Case, Tensors],
    perturbing_configuration: RuntimeConfiguration,
    delay_seed: int,
    perturbed_case: Case,
    tmp_path: Path,
) -> None:
    """After four steps parameters, gradients, m and v equal those of a run on 1x1 eager, and the order was kept."""
    seed = starpullm_validation.seed
    if perturbed_case not in plain_runs:
        plain = Checker(starpullm_validation, request.node, RuntimeConfiguration("1x1", "eager"))
        plain_runs[perturbed_case] = _run(plain, perturbed_case, seed, 0, 0, tmp_path / "plain.npz")
    checker = Checker(starpullm_validation, request.node, perturbing_configuration)
    found = _run(checker, perturbed_case, seed, MAX_DELAY_US, delay_seed, tmp_path / "perturbed.npz")
    perturbed = f"{perturbing_configuration}, delays of up to {MAX_DELAY_US} µs by seed {delay_seed}"
    runs_of_case = {"the plain run": plain_runs[perturbed_case], perturbed: found}
    checker.judge(check_same_bits("perturbation", runs_of_case))


def _run(checker: Checker, case: Case, seed: int, max_delay_us: int, delay_seed: int, path: Path) -> Tensors:
    """Return the tensors of a run; fail if it didn't keep the order."""
    checker(
        runs.write_perturbed,
        **case._asdict(),
        seed=seed,
        max_delay_us=max_delay_us,
        delay_seed=delay_seed,
        path=str(path),
    )
    with np.load(path) as arrays:
        return dict(arrays)
