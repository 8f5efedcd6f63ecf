"""Patches of the sources, one defect each: their headers, and applying them to a copy of the sources.

A patch is a text that `git apply` takes, below a header of lines `Key: value`. Nothing here is built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

SHIPPED = Path(__file__).resolve().parent / "defects"
"""The directory of the project's own patches."""

FIELD = SHIPPED.with_name("field")
"""The directory of patches that make the mistakes of other projects' published bugs."""

SOURCES = ("native/include", "native/src", "starpullm")

CONTEXT = "-U1"
"""The less a patch has around its change, the fewer changes of others it gets in the way of."""

_RENEW = "'Renew a patch'"

HEADER = re.compile(
    r"Defect: (?P<defect>.+)\n(Shows: .+\n)?Caught-by: (?P<caught_by>.+)\n"
    r"(Source: (?P<source>[\w.-]+/[\w.-]+#\d+)\n)?(?P<quick>Quick: yes\n)?"
)
"""Without the line on the model and the configuration that it shows with, every one shows it."""


class PatchError(Exception):
    """A patch that cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Patch:
    """A defect.

    Parameters
    ----------
    path
        The file; its name without the suffix is the defect's name.
    header
        The lines before the diff.
    defect
        What is wrong, in one sentence.
    caught_by
        The name of the check that must catch it.
    is_quick
        Whether every run of the tests tries it.
    diff
        What follows the header.
    source
        The published bug that it repeats, if any.
    """

    path: Path
    header: str
    defect: str
    caught_by: str
    is_quick: bool
    diff: str
    source: str = ""

    @property
    def name(self) -> str:
        """The defect's name."""
        return self.path.stem

    @property
    def changed_files(self) -> list[str]:
        """The files that it changes, relative to the root of the sources."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.diff, re.MULTILINE)

    @property
    def is_of_package(self) -> bool:
        """Whether it changes the Python package, not the native library."""
        return self.changed_files[0].startswith("starpullm/")

    def apply(self, directory: Path) -> None:
        """Apply it to a copy of the sources, as `apply_patch` does."""
        apply_patch(self, directory)


def find_patches(directory: Path) -> list[Path]:
    """Return the patch files of a directory by name.

    Raises
    ------
    PatchError
        If there is none.
    """
    paths = sorted(directory.glob("*.patch"))
    if not paths:
        raise PatchError(f"{directory}: found no file *.patch, expected a directory of patches")
    return paths


def read_patch(path: Path) -> Patch:
    """Return a patch.

    Raises
    ------
    PatchError
        If its header does not consist of the expected lines, or no diff follows.
    """
    header, _, diff = path.read_text("utf-8").partition("\n\n")
    if "\n+++ b/" not in diff:
        raise PatchError(f"{path}: found no line '+++ b/', expected a header, an empty line and a diff")
    header += "\n"
    found = HEADER.fullmatch(header)
    if found is None:
        raise PatchError(
            f"{path}: found the header {header.splitlines()}, expected Defect, Shows, Caught-by, Source, Quick"
        )
    caught_by, is_quick, source = found["caught_by"], bool(found["quick"]), found["source"] or ""
    return Patch(path, header, found["defect"], caught_by, is_quick, diff, source)


def copy_sources(directory: Path) -> None:
    """Copy the checkout's sources that patches may change."""
    others = shutil.ignore_patterns("__pycache__", "*.json")
    for part in SOURCES:
        shutil.copytree(CHECKOUT / part, directory / part, ignore=others)


def apply_patch(patch: Patch, directory: Path, *, check_only: bool = False) -> None:
    """Apply a patch to a copy of the sources; nothing is changed if a part of it does not apply.

    Parameters
    ----------
    patch
        The patch.
    directory
        What holds the copy of `native`; not in a git repository.
    check_only
        Change nothing in any case.

    Raises
    ------
    PatchError
        If it does not apply, and the message shows the lines that were not found; or if it applies to another function
        than it names, as may happen with little context.
    """
    with tempfile.TemporaryDirectory(prefix="starpullm-patch-") as name:
        before, after = Path(name, "a"), Path(name, "b")
        for path in patch.changed_files:
            for side in (before, after):
                (side / path).parent.mkdir(parents=True, exist_ok=True)
                if (directory / path).exists():
                    shutil.copy(directory / path, side / path)
        _apply(patch, after)
        found, expected = functions(difference(Path(name))), functions(patch.diff)
    if found != expected:
        raise PatchError(f"{patch.path.name} changes {found}, expected {expected}; see docs/contributing.md, {_RENEW}")
    if not check_only:
        _apply(patch, directory)


def _apply(patch: Patch, directory: Path) -> None:
    # git would leave out files that a repository around the directory does not have.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent), "LC_ALL": "C"}
    command = ["git", "apply", "--verbose", "-"]
    run = subprocess.run(
        command, cwd=directory, env=environment, input=patch.diff, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise PatchError(f"{patch.path.name} does not apply; see docs/contributing.md, {_RENEW}:\n{run.stderr}")


def difference(directory: Path) -> str:
    """Return the difference between the directory's `a` and `b` as a patch has it.

    Raises
    ------
    PatchError
        If there is none.
    """
    command = ["git", "diff", "--no-index", CONTEXT, "--no-prefix", "--no-color", "--no-ext-diff", "a", "b"]
    run = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if run.returncode != 1:
        raise PatchError(f"found no difference between {directory}/a and {directory}/b {run.stderr}")
    return re.sub(r"^(?:diff|index) .*\n", "", run.stdout, flags=re.MULTILINE)


def functions(diff: str) -> list[str]:
    """Return what each hunk says that it follows, a function's name without its parameters."""
    headings = re.findall(r"^@@ -\S+ \+\S+ @@ ?(.*)$", diff, re.MULTILINE)
    return [heading.partition("(")[0].split(" ")[-1].lstrip("*") for heading in headings]
