"""Makes the fixed sample of every test run: mutants as patches, each with the check that catches it.

Run by hand: ``python -m tests.mutation.generated.sample``; docs/contributing.md describes it.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..laboratory import CHECKS, REPEATED, TIME_LIMIT_CATCH, Laboratory
from ..mutants import Builder
from ..patches import SAMPLE, Patch, PatchError
from .candidates import FOLDERS, VECTOR_FOLDER, Candidate, Stratum, candidates_of, shuffled

_NAMES = [name for name in REPEATED if name != "perturbation"]
"""Checks that take a second and whose findings do not depend on time."""

_ATTEMPTS = 60


def sampled(builder: Builder, directory: Path, folder: str, seed: int, count: int) -> Iterator[Patch]:
    """Yield mutants of a folder that are caught, one a file."""
    stratum = Stratum(folder)
    files: set[str] = set()
    for candidate in shuffled(list(candidates_of(builder.sources, folder)), seed, stratum)[:_ATTEMPTS]:
        if len(files) == count:
            return
        if candidate.file in files:
            continue
        patch = patch_of(candidate, builder.sources, f"{re.sub(r'[^a-z0-9]+', '_', folder)}_{len(files) + 1}")
        try:
            library = builder.build(patch, refuse_warnings=True).library
        except PatchError:
            continue
        check = catching_check(library, directory)
        if check:
            files.add(candidate.file)
            yield replace(patch, caught_by=check)


def patch_of(candidate: Candidate, sources: Path, name: str) -> Patch:
    """Return a candidate as a patch."""
    before = (sources / candidate.file).read_text("utf-8").splitlines(keepends=True)
    after = list(before)
    after[candidate.line - 1] = f"{candidate.after}\n"
    diff = "".join(difflib.unified_diff(before, after, f"a/{candidate.file}", f"b/{candidate.file}"))
    return Patch(
        path=SAMPLE / f"{name}.patch",
        kind="generated",
        defect=f"a line of {Path(candidate.file).name} is changed by the rule {candidate.rule}",
        shows="the record tiny",
        caught_by="",
        is_quick=False,
        diff=f"diff --git a/{candidate.file} b/{candidate.file}\n{diff}",
    )


def catching_check(library: Path, directory: Path) -> str | None:
    """Return the first check that catches a library; None if there is none, or one did not end or compare."""
    with Laboratory(library, directory, only_tiny=True) as laboratory:
        for name in _NAMES:
            try:
                caught = next(CHECKS[name](laboratory, name), None)
            except AssertionError:  # it could not compare
                return None
            if caught:
                return None if caught.check == TIME_LIMIT_CATCH else caught.check
    return None


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated.sample", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--per-folder", type=int, default=2, help="default 2")
    parser.add_argument("--folders", nargs="+", default=[*FOLDERS, VECTOR_FOLDER], metavar="FOLDER", help="default all")
    options = parser.parse_args()
    SAMPLE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="starpullm-sample-") as directory:
        builder = Builder(Path(directory))
        for folder in options.folders:
            for patch in sampled(builder, Path(directory), folder, options.seed, options.per_folder):
                patch.path.write_text(f"{patch.header}\n{patch.diff}", "utf-8")
                print(f"{patch.path.name}: {patch.caught_by}", flush=True)


if __name__ == "__main__":
    main()
