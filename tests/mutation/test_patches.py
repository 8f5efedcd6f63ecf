"""Every patch applies to the present sources and has a complete header; nothing is built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .laboratory import CHECKS, NOTHING, PROJECTS_TESTS, TIME_LIMIT_CATCH
from .patches import FIELD, SHIPPED, Patch, PatchError, apply_patch, copy_sources, find_patches, read_patch
from .renew import renew

HEADER = "Kind: k\nDefect: d\nShows: s\nCaught-by: parity\n"
DIFF = """
diff --git a/native/src/a.c b/native/src/a.c
--- a/native/src/a.c
+++ b/native/src/a.c
@@ -1,2 +1,2 @@
-int one = 1;
+int one = 2;
 int two = 2;
"""


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


def test_header_names_a_check(patch: Patch) -> None:
    known = {PROJECTS_TESTS} if patch.is_of_package else {*CHECKS, TIME_LIMIT_CATCH}
    assert patch.caught_by in {*known, NOTHING}
    assert bool(patch.source) == (patch.path.parent == FIELD)


def test_no_change_is_made_by_two_patches() -> None:
    names: dict[str, list[str]] = {}
    for path in (*find_patches(SHIPPED), *find_patches(FIELD)):
        names.setdefault(read_patch(path).diff, []).append(path.stem)
    assert [of_one for of_one in names.values() if len(of_one) > 1] == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEADER, "found no line 'diff --git'"),
        (HEADER.replace("Shows: s\n", "") + DIFF, "expected one line each of Kind, Defect, Shows, Caught-by"),
        (HEADER + "Kind: twice\n" + DIFF, "expected one line each"),
        (HEADER + "Sort: unknown\n" + DIFF, "expected one line each"),
        (HEADER + "Source: somewhere\n" + DIFF, "found 'Source: somewhere', expected owner/repository#number"),
        (HEADER + "Quick: no\n" + DIFF, "found 'Quick: no', expected 'Quick: yes'"),
    ],
)
def test_broken_headers_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.patch"
    path.write_text(text)
    with pytest.raises(PatchError, match=sentence) as caught:
        read_patch(path)
    assert str(path) in str(caught.value)


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


def test_what_does_not_apply_names_patch_file_and_hunk(tmp_path: Path) -> None:
    path = tmp_path / "gone.patch"
    path.write_text(HEADER + DIFF)
    source = tmp_path / "native" / "src" / "a.c"
    source.parent.mkdir(parents=True)
    source.write_text("int one = 3;\nint two = 2;\n")
    with pytest.raises(PatchError) as caught:
        apply_patch(read_patch(path), tmp_path)
    message = str(caught.value)
    assert "gone.patch does not apply" in message
    assert "patch failed: native/src/a.c:1" in message
    assert "int one = 1;" in message
    assert source.read_text() == "int one = 3;\nint two = 2;\n"
