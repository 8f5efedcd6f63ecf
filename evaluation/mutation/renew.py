"""Writes patches anew that no longer apply to the present sources; headers are kept.

Run by hand in the root of the checkout: ``python -m evaluation.mutation.renew``; docs/contributing.md describes it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from .patches import (
    FIELD,
    SHIPPED,
    Patch,
    PatchError,
    apply_patch,
    copy_sources,
    difference,
    find_patches,
    functions,
    read_patch,
)


def renew(path: Path, moved: Iterable[tuple[str, str]]) -> str:
    """Write a patch anew if it does not apply as it stands; return what became of it."""
    patch = read_patch(path)
    diff = patch.diff
    for old, new in moved:
        diff = diff.replace(f"a/{old}", f"a/{new}").replace(f"b/{old}", f"b/{new}")
    directory = Path(tempfile.mkdtemp(prefix=f"starpullm-{patch.name}-"))
    for side in "ab":
        copy_sources(directory / side)
    try:
        if diff == patch.diff:
            apply_patch(patch, directory / "b", check_only=True)
            shutil.rmtree(directory)
            return "applies"
    except PatchError:
        pass
    command = ["patch", "-p1", "--fuzz=3", "--no-backup-if-mismatch", "--force"]
    run = subprocess.run(command, cwd=directory / "b", input=diff, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return f"does not apply; make the change in {directory}/b, then use --from {directory}\n{run.stdout}"
    if functions(difference(directory)) != functions(diff):
        return f"changes another function; mend the change in {directory}/b, then use --from {directory}\n{run.stdout}"
    write(patch, directory)
    shutil.rmtree(directory)
    return f"written anew; look at it\n{run.stdout}"


def write(patch: Patch, directory: Path) -> None:
    """Write the difference between the directory's `a` and `b` as the patch."""
    for rejected in (directory / "b").rglob("*.rej"):
        rejected.unlink()
    diff = difference(directory)
    patch.path.write_text(f"{patch.header}\n{diff}", "utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser(description="Write patches anew that no longer apply; their headers are kept.")
    parser.add_argument("patches", nargs="*", type=Path, help="patch files; default: all of evaluation/mutation")
    parser.add_argument("--moved", action="append", default=[], metavar="OLD=NEW", help="a file's old and new path")
    parser.add_argument("--from", dest="directory", type=Path, help="take the patch from a directory edited by hand")
    options = parser.parse_args()
    if options.directory is not None and len(options.patches) != 1:
        parser.error("--from needs exactly one patch")
    try:
        if options.directory is not None:
            write(read_patch(options.patches[0]), options.directory)
            return
        moved = [tuple(pair.split("=", 1)) for pair in options.moved]
        for path in options.patches or [*find_patches(SHIPPED), *find_patches(FIELD)]:
            print(f"{path.stem}: {renew(path, moved)}")
    except PatchError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    _main()
