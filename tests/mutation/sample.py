"""A fixed sample of generated mutants, in sample.toml: each changes a line, and names the check that catches it.

Run by hand it draws them anew: ``python -m tests.mutation.sample``; docs/contributing.md describes it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .generated.candidates import FOLDERS, VECTOR_FOLDER, Candidate, Stratum, candidates_of, shuffled
from .laboratory import CHECKS, REPEATED, TIME_LIMIT_CATCH, Laboratory
from .mutants import Builder
from .patches import PatchError

SAMPLE = Path(__file__).with_suffix(".toml")

_HEAD = "# Generated mutants that every run of the tests tries: python -m tests.mutation.sample draws them anew.\n"
_NAMES = [name for name in REPEATED if name != "perturbation"]
"""Checks that take a second and whose findings do not depend on time."""

_ATTEMPTS = 60


@dataclass(frozen=True)
class Sampled:
    """A changed line, and the check that catches it."""

    candidate: Candidate
    caught_by: str = ""

    @property
    def name(self) -> str:
        """The changed file and line."""
        return f"{self.candidate.folder}/{Path(self.candidate.file).name}:{self.candidate.line}"

    @property
    def changed_files(self) -> list[str]:
        """The one file, relative to the root of the sources."""
        return [self.candidate.file]

    def apply(self, directory: Path) -> None:
        """Change the line in a copy of the sources."""
        self.candidate.apply(directory)


def read_sample() -> list[Sampled]:
    """Return the sample."""
    entries = tomllib.loads(SAMPLE.read_text("utf-8"))["mutant"]
    return [Sampled(Candidate(**entry), caught_by) for entry in entries if (caught_by := entry.pop("caught_by"))]


def write_sample(sample: Iterable[Sampled]) -> None:
    """Write the sample; texts in TOML are those of JSON."""
    text = _HEAD
    for one in sample:
        values = {**one.candidate.as_json(), "caught_by": one.caught_by}
        text += "\n[[mutant]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    SAMPLE.write_text(text, "utf-8")


def sampled(builder: Builder, directory: Path, folder: str, seed: int, count: int) -> Iterator[Sampled]:
    """Yield mutants of a folder that are caught, one a file."""
    files: set[str] = set()
    for candidate in shuffled(list(candidates_of(builder.sources, folder)), seed, Stratum(folder))[:_ATTEMPTS]:
        if len(files) == count:
            return
        if candidate.file in files:
            continue
        try:
            library = builder.build(Sampled(candidate), refuse_warnings=True).library
        except PatchError:
            continue
        check = catching_check(library, directory)
        if check:
            files.add(candidate.file)
            yield Sampled(candidate, check)


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
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.sample", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--per-folder", type=int, default=2, help="default 2")
    parser.add_argument("--folders", nargs="+", default=[*FOLDERS, VECTOR_FOLDER], metavar="FOLDER", help="default all")
    options = parser.parse_args()
    kept = [one for one in read_sample() if one.candidate.folder not in options.folders]
    with tempfile.TemporaryDirectory(prefix="starpullm-sample-") as directory:
        builder = Builder(Path(directory))
        for folder in options.folders:
            for one in sampled(builder, Path(directory), folder, options.seed, options.per_folder):
                kept.append(one)
                print(f"{one.name}: {one.caught_by}", flush=True)
    write_sample(sorted(kept, key=lambda one: (one.candidate.file, one.candidate.line)))


if __name__ == "__main__":
    main()
