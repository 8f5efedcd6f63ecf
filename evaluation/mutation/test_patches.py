"""Every patch applies to the present sources and has a complete header; nothing is built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .laboratory import CHECKS, NOTHING, PROJECTS_TESTS, TIME_LIMIT_CATCH
from .patches import FIELD, SHIPPED, Patch, PatchError, apply_patch, copy_sources, find_patches, read_patch
from .renew import renew


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources."""
    directory = tmp_path_factory.mktemp("sources")
    copy_sources(directory)
    return directory


def test_patch_applies(patch: Patch, sources: Path) -> None:
    try:
        apply_patch(patch, sources, check_only=True)
    except PatchError as error:
        pytest.fail(str(error), pytrace=False)


def test_a_hunk_that_applies_to_another_function_is_refused(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "moved.patch"
    shipped = (SHIPPED / "update_as_read_adamw.patch").read_text()
    path.write_text(shipped.replace("@@ -184,2 +184,4 @@", "@@ -143,2 +143,4 @@"))
    with pytest.raises(PatchError, match=r"changes \['submit_by_plan'\], expected \['insert_task'\]"):
        apply_patch(read_patch(path), sources, check_only=True)


def test_header_names_a_check(patch: Patch) -> None:
    known = {PROJECTS_TESTS} if patch.is_of_package else {*CHECKS, TIME_LIMIT_CATCH}
    assert patch.caught_by in {*known, NOTHING}
    assert bool(patch.source) == (patch.path.parent == FIELD)


def test_no_change_is_made_by_two_patches() -> None:
    names: dict[str, list[str]] = {}
    for path in (*find_patches(SHIPPED), *find_patches(FIELD)):
        names.setdefault(read_patch(path).diff, []).append(path.stem)
    assert [of_one for of_one in names.values() if len(of_one) > 1] == []


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
def test_renewing_changes_the_context_and_keeps_the_header(sources: Path, tmp_path: Path) -> None:
    path = tmp_path / "stale.patch"
    text = (SHIPPED / "state_step.patch").read_text()
    context = next(line for line in reversed(text.splitlines()) if line.startswith(" ") and line.strip())
    path.write_text(text.replace(context, " /* something else */"))
    before = read_patch(path)
    with pytest.raises(PatchError, match="does not apply"):
        apply_patch(before, sources, check_only=True)
    assert renew(path, []).startswith("written anew")
    after = read_patch(path)
    assert after.header == before.header
    apply_patch(after, sources, check_only=True)
    assert renew(path, []) == "applies"
