"""The fixed sample of generated mutants: each is caught by the check that it names.

`python -m tests.mutation.generated` draws and tries many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .laboratory import CHECKS, Laboratory
from .mutants import Change, Mutant
from .patches import CHECKOUT
from .sample import Sampled, read_sample

MUTANTS = read_sample()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.timeout(300)
def test_mutant_is_caught(mutant: Sampled, build: Callable[[Change], Mutant], tmp_path: Path) -> None:
    with Laboratory(build(mutant).library, tmp_path, only_tiny=True) as laboratory:
        caught = next(CHECKS[mutant.caught_by](laboratory, mutant.caught_by), None)
    diff = mutant.candidate.diff
    assert caught is not None, f"no check caught it, expected {mutant.caught_by!r} to\n{diff}"
    assert caught.check == mutant.caught_by, f"expected {mutant.caught_by!r} to catch it, found {caught}\n{diff}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_present_sources(mutant: Sampled) -> None:
    lines = (CHECKOUT / mutant.candidate.file).read_text("utf-8").splitlines()
    assert mutant.candidate.applied(lines) != lines


def test_the_sample_is_spread_over_folders_and_checks() -> None:
    folders = {mutant.candidate.folder for mutant in MUTANTS}
    assert len(MUTANTS) >= 18
    assert folders >= {"graph", "codelets", "data", "session", "kernels/ref", "kernels/simd"}
    assert len({mutant.caught_by for mutant in MUTANTS}) >= 4
