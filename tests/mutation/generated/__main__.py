"""Samples mutants, runs the suite on them and writes a summary: ``python -m tests.mutation.generated``.

It can be interrupted at any time; ``--resume`` goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from starpullm.processes.lock import machine_lock

from ..mutants import Builder
from ..patches import CHECKOUT, PatchError
from .candidates import VECTOR_FOLDER, Candidate, Stratum, candidates_of, shuffled, strata, tool
from .results import Mutant, Results
from .stages import STAGES, Stage, Workplace, limit_this_process, machine_of

SOON = {
    VECTOR_FOLDER: ("quick", "kernels"),
    **dict.fromkeys(("graph", "codelets", "data"), ("quick", "two ranks, quick")),
}
"""The stages that catch most mutants of a folder in a second: they come first."""


class Laboratory:
    """Makes mutants and tries them."""

    def __init__(self, directory: Path, builder: Builder, results: Results, seed: int) -> None:
        self._directory = directory
        self._builder = builder
        self._results = results
        self._seed = seed
        self._workplace = Workplace(directory / "runs", builder)
        self._measured: set[tuple[Stage, str | None]] = set()
        self._orders: dict[Stratum, list[Candidate]] = {}
        self._originals: dict[str, str] = {}

    def try_next(self, stratum: Stratum) -> bool:
        """Try the next mutant of a stratum; return whether there is one."""
        known = self._results.of(str(stratum))
        seen = {mutant.objects for mutant in known}
        first = known[-1].position + 1 if known else 0
        for position, candidate in enumerate(self._order(stratum)[first:], first):
            with tempfile.TemporaryDirectory(prefix="built-", dir=self._directory) as built:
                objects = self._build(candidate, stratum.level, Path(built))
                if objects is None or objects in seen or objects == self._unchanged(candidate, stratum.level):
                    continue
                mutant = Mutant(str(stratum), position, candidate, objects, [])
                self._run_stages(mutant, stratum.level, Path(built) / "libstarpullm.so")
            self._results.add(mutant)
            return True
        return False

    def _run_stages(self, mutant: Mutant, level: str | None, library: Path) -> None:
        """Run the stages until one catches the mutant; each is first run without a mutant."""
        soon = SOON.get(mutant.candidate.folder, ("quick",))
        for stage in sorted(STAGES, key=lambda stage: stage.name not in soon):
            of_baseline = stage, level if stage is STAGES[0] else None
            if of_baseline not in self._measured:
                self._workplace.measure(*of_baseline)
                self._measured.add(of_baseline)
            outcome = self._workplace.try_mutant(stage, library, level)
            mutant.outcomes.append(outcome)
            print(f"{mutant.stratum} {mutant.position}: {outcome}", flush=True)
            if outcome.test:
                return

    def _order(self, stratum: Stratum) -> list[Candidate]:
        if stratum not in self._orders:
            candidates = [
                candidate
                for candidate in candidates_of(self._builder.sources, stratum.folder)
                if self._objects(candidate, stratum.level)  # other systems' files are not compiled
            ]
            self._orders[stratum] = shuffled(candidates, self._seed, stratum)
        return self._orders[stratum]

    def _objects(self, candidate: Candidate, level: str | None) -> list[str]:
        """Return the objects to compile: of a vector kernel only those of the level."""
        objects = self._builder.objects_of(candidate.file)
        if "/kernels/simd/" not in candidate.file:
            return objects
        return [name for name in objects if level_of(name) in (None, level)]

    def _build(self, candidate: Candidate, level: str | None, directory: Path) -> str | None:
        """Build the library with a candidate; return a hash of its objects, None if it does not compile or link."""
        self._builder.copy_sources(directory)
        candidate.apply(directory)
        names = self._objects(candidate, level)
        try:
            found = self._hash(names, directory)
            self._builder.link(names, directory)
        except (PatchError, subprocess.TimeoutExpired):
            return None
        shutil.rmtree(directory / "native")
        return found

    def _unchanged(self, candidate: Candidate, level: str | None) -> str:
        objects = self._objects(candidate, level)
        key = " ".join(objects)
        if key not in self._originals:
            with tempfile.TemporaryDirectory(dir=self._directory) as directory:
                self._builder.copy_sources(Path(directory))
                self._originals[key] = self._hash(objects, Path(directory))
        return self._originals[key]

    def _hash(self, objects: list[str], directory: Path) -> str:
        found = hashlib.sha256()
        for name in objects:
            path = self._builder.compile(name, directory, refuse_warnings=True)
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
            found.update(path.read_bytes())
        return found.hexdigest()[:16]


def level_of(name: str) -> str | None:
    """Return the level of vector instructions that an object is compiled for; None: all."""
    found = re.search(r"kernels_(\w+)\.dir/", name)
    return found[1] if found else None


def describe_run(seed: int, builder: Builder) -> dict[str, str]:
    """Return what a run in this checkout is made with."""
    sources = hashlib.sha256()
    for paths in ((builder.sources / "native").rglob("*.[ch]"), (CHECKOUT / "starpullm").rglob("*.py")):
        for path in sorted(paths):
            sources.update(path.read_bytes())
    machine = machine_of(builder.library)
    assert machine is not None
    levels = sorted(filter(None, {level_of(name) for name in builder.objects}))
    return {
        "seed": str(seed),
        "sources": sources.hexdigest()[:16],
        "tool": tool(),
        "compiler": subprocess.check_output(["cc", "--version"], text=True).splitlines()[0],
        "machine": f"{machine['cores']} cores, {machine['processor'] or 'unknown processor'}",
        "levels": " ".join(level for level in levels if machine_of(builder.library, level)),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    parser.add_argument("--count", type=int, default=400, help="mutants of all folders together; default 400")
    parser.add_argument("--folder", help="only mutants of this folder below native/src")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="the results to continue, as lines of JSON")
    options = parser.parse_args()
    path = options.resume or CHECKOUT / ".cache" / f"mutants-{options.seed}.jsonl"
    if options.resume is None and path.exists():
        parser.error(f"{path} has results already: continue with --resume {path}, or remove it")
    limit_this_process()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM; --resume goes on"))
    with tempfile.TemporaryDirectory(prefix="starpullm-mutants-") as directory:
        with machine_lock():  # two at a time would write the same files
            builder = Builder(Path(directory))
        run = describe_run(options.seed, builder)
        try:
            results = Results(path, run)
        except ValueError as error:
            parser.error(str(error))
        every = strata(run["levels"].split())
        chosen = [stratum for stratum in every if options.folder in (None, stratum.folder)]
        if not chosen:
            parser.error(f"--folder: found {options.folder}, expected one of {', '.join(s.folder for s in every)}")
        laboratory = Laboratory(Path(directory), builder, results, options.seed)
        try:
            for number in range(-(-options.count // len(every))):
                chosen = [of for of in chosen if number < len(results.of(str(of))) or laboratory.try_next(of)]
        finally:
            path.with_suffix(".md").write_text(results.summary(), "utf-8")


if __name__ == "__main__":
    main()
