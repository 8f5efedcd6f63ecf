"""A fixed sample of generated mutants: each is caught by the check that its patch names.

`python -m tests.mutation.generated` draws and tries many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .laboratory import CHECKS, Laboratory
from .mutants import Mutant
from .patches import SAMPLE, Patch, find_patches, read_patch

PATHS = find_patches(SAMPLE)


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
@pytest.mark.timeout(300)
def test_mutant_is_caught(path: Path, build: Callable[[Patch], Mutant], tmp_path: Path) -> None:
    patch = read_patch(path)
    with Laboratory(build(patch).library, tmp_path, only_tiny=True) as laboratory:
        caught = next(CHECKS[patch.caught_by](laboratory, patch.caught_by), None)
    assert caught is not None, f"{path.name}: no check caught it, expected {patch.caught_by!r} to\n{patch.diff}"
    assert caught.check == patch.caught_by, f"{path.name}: expected {patch.caught_by!r} to catch it, found {caught}"


def test_the_sample_is_spread_over_folders_and_checks() -> None:
    patches = [read_patch(path) for path in PATHS]
    changed = [Path(name) for patch in patches for name in patch.changed_files]
    folders = {str(path.parent.relative_to("native/src")) for path in changed}
    assert len(patches) >= 18
    assert folders >= {"graph", "codelets", "data", "session", "kernels/ref", "kernels/simd"}
    assert len({patch.caught_by for patch in patches}) >= 4
