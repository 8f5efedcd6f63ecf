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
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starpullm.processes.lock import machine_lock

from ..mutants import Builder
from ..patches import CHECKOUT, PatchError
from .candidates import VECTOR_FOLDER, Candidate, Stratum, candidates_of, shuffled, strata, tool
from .results import SUITE, Mutant, Results, Run, checked_out, in_suite
from .stages import STAGES, Stage, Workplace, inspect, limit_this_process
from .summary import summary


@dataclass(frozen=True)
class Built:
    """A library with a mutant, in a directory of its own: the hash of its objects, and the objects by their names."""

    directory: Path
    objects_hash: str
    objects: dict[str, Path]


class Laboratory:
    """Makes mutants and tries them.

    Parameters
    ----------
    directory
        For everything that is built and run.
    builder
        The unchanged library.
    results
        What has been tried.
    workplace
        Where mutants are run.
    """

    def __init__(self, directory: Path, builder: Builder, results: Results, workplace: Workplace) -> None:
        self._directory = directory
        self._builder = builder
        self._results = results
        self._workplace = workplace
        self._orders: dict[Stratum, list[Candidate]] = {}
        self._originals: dict[str, str] = {}
        self._built: dict[str, Built] = {}

    def mutant(self, stratum: Stratum, number: int) -> Mutant | None:
        """Return a mutant of a stratum, which is sampled unless an earlier run has; None if there are no more."""
        known = self._results.of_stratum(str(stratum))
        if number < len(known):
            return known[number]
        if str(stratum) in self._results.exhausted:
            return None
        first = known[-1].position + 1 if known else 0
        seen = {mutant.objects for mutant in known}
        left_out: Counter[str] = Counter()
        for position, candidate in enumerate(self._order(stratum)[first:], first):
            built = self._build(candidate, stratum.level)
            if built is None:
                left_out["does not compile or link"] += 1
            elif built.objects_hash == self._unchanged(candidate, stratum.level):
                left_out["the same objects"] += 1
            elif built.objects_hash in seen:
                left_out["the objects of an earlier mutant"] += 1
            else:
                name = f"{stratum} {number + 1}"
                objects = built.objects_hash
                found = Mutant(name, str(stratum), stratum.level, position, candidate, objects, dict(left_out))
                self._results.add("mutant", found.as_json())
                self._built[name] = built
                return found
            if built:
                shutil.rmtree(built.directory)
        self._results.add("exhausted", {"stratum": str(stratum), "left_out": dict(left_out)})
        return None

    def run_stage(self, mutant: Mutant, number: int) -> None:
        """Run a stage on a mutant, unless that was done or an earlier stage has caught it."""
        stage = STAGES[number]
        outcomes = self._results.outcomes.get(mutant.name, {})
        own_tests = stage not in SUITE  # the suite is tried even if the project's own tests have caught a mutant
        if stage.name in outcomes or any(found.how for found in outcomes.values() if own_tests or in_suite(found)):
            return
        self._measure(stage, mutant.level)
        built = self._built.get(mutant.name) or self._build(mutant.candidate, mutant.level)
        assert built is not None
        self._built[mutant.name] = built
        library, objects = built.directory / "libstarpullm.so", built.objects
        outcome = self._workplace.try_mutant(stage, library, mutant.level, objects, mutant.candidate.file)
        self._results.add("outcome", {"mutant": mutant.name, **outcome.as_json()})
        if outcome.how or number == len(STAGES) - 1:
            shutil.rmtree(self._built.pop(mutant.name).directory)
        what = f"{outcome.how}: {outcome.check}" if outcome.how else "passed"
        print(f"{mutant.name}: {stage.name}, {outcome.seconds:.1f} s: {what}", flush=True)

    def _measure(self, stage: Stage, level: str | None) -> None:
        """Run a stage without a mutant, unless that was done; only the first stage is run at each level."""
        level = level if stage is STAGES[0] else None
        if (stage.name, level) not in self._results.baselines:
            seconds = self._workplace.measure(stage, level)
            self._results.add("baseline", {"stage": stage.name, "level": level, "seconds": seconds})
            print(f"{stage.name}, {level or 'best level'}: {seconds:.1f} s without a mutant", flush=True)

    def _order(self, stratum: Stratum) -> list[Candidate]:
        if stratum not in self._orders:
            assert self._results.run is not None
            candidates = [
                candidate
                for candidate in candidates_of(self._builder.sources, stratum.folder)
                if self._objects(candidate, stratum.level)  # other systems' files are not compiled
            ]
            self._orders[stratum] = shuffled(candidates, self._results.run.seed, stratum)
        return self._orders[stratum]

    def _objects(self, candidate: Candidate, level: str | None) -> list[str]:
        """Return the objects to compile: of a vector kernel only those of the level."""
        objects = self._builder.objects_of(candidate.file)
        if "/kernels/simd/" not in candidate.file:
            return objects
        return [name for name in objects if level_of(name) in (None, level)]

    def _build(self, candidate: Candidate, level: str | None) -> Built | None:
        """Return the library with a candidate; None if it does not compile or link."""
        directory = Path(tempfile.mkdtemp(prefix="built-", dir=self._directory))
        self._builder.copy_sources(directory)
        candidate.apply(directory)
        names = self._objects(candidate, level)
        try:
            found = self._hash(names, directory)
            self._builder.link(names, directory)
        except (PatchError, subprocess.TimeoutExpired):
            shutil.rmtree(directory)
            return None
        shutil.rmtree(directory / "native")
        return Built(directory, found, {name: directory / name for name in names})

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


_RANKS, _C = "two ranks, parity", "C tests"

SOON: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    ((VECTOR_FOLDER,), ("kernels", "parity")),
    (("graph", "codelets", "data"), (_RANKS, "parity")),
    (("trace", "session", "io", "runtime", "data", "codelets"), ("interface", "two ranks, interface")),
    (("trace", "session", "io", "runtime"), (_C,)),
    (("codelets", "data", "session", "trace"), ("memory",)),
)
"""What comes after the first stage, in rounds: folders, and the stages that catch most of their mutants in a second."""


def level_of(name: str) -> str | None:
    """Return the level of vector instructions that an object is compiled for; None: all."""
    found = re.search(r"kernels_(\w+)\.dir/", name)
    return found[1] if found else None


def describe_run(seed: int, builder: Builder, known: Run | None) -> Run:
    """Return what a run in this checkout is made with, on the machine of a known run if there is one."""
    sources = hashlib.sha256()
    for paths in ((builder.sources / "native").rglob("*.[ch]"), (CHECKOUT / "starpullm").rglob("*.py")):
        for path in sorted(paths):
            sources.update(path.read_bytes())
    compiler = subprocess.check_output(["cc", "--version"], text=True).splitlines()[0]
    levels, machine = machine_of(builder) if known is None else (known.levels, known.machine)
    return Run(seed, checked_out(), sources.hexdigest()[:16], tool(), compiler, machine, levels)


def machine_of(builder: Builder) -> tuple[tuple[str, ...], str]:
    """Return the levels of vector instructions that this machine has, and its name."""
    levels = sorted(filter(None, {level_of(name) for name in builder.objects}))
    machine = inspect(builder.library)
    assert machine is not None
    name = f"{machine['cores']} cores, {machine['processor'] or 'unknown processor'}"
    return tuple(level for level in levels if inspect(builder.library, level)), name


def work(
    laboratory: Laboratory,
    chosen: list[Stratum],
    count: int,
    deadline: float,
    known: Sequence[Mutant] = (),
    only: str | None = None,
) -> Iterator[str]:
    """Try known mutants and the first ones of strata, until all is done or the time is up; yield what was not done.

    All mutants go through the first stage before another begins for those that are left.
    """
    mutants = list(known)
    for number in range(count):
        for stratum in chosen:
            if time.monotonic() > deadline:
                yield "the sample is not complete"
                return
            mutant = laboratory.mutant(stratum, number)
            if mutant is not None:
                laboratory.run_stage(mutant, 0)
                mutants.append(mutant)
    numbers = {stage.name: number for number, stage in enumerate(STAGES)}
    every = tuple(dict.fromkeys(mutant.candidate.folder for mutant in mutants))
    rounds = [(every, (STAGES[0].name,)), *SOON, *((every, (stage.name,)) for stage in STAGES)]
    for where, names in [(every, (only,))] if only else rounds:
        for mutant in mutants:
            for name in names if mutant.candidate.folder in where else ():
                if time.monotonic() > deadline:
                    yield f"{', '.join(names)}: not all mutants that are left have been tried"
                    return
                laboratory.run_stage(mutant, numbers[name])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the sample; default 1")
    parser.add_argument("--count", type=int, default=400, help="mutants of all folders together; default 400")
    parser.add_argument("--folder", help="only mutants of this folder below native/src")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="the results to continue, as lines of JSON")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after this time")
    parser.add_argument("--summary-only", action="store_true", help="try nothing, write the summary of --resume FILE")
    once_more = "forget that these mutants have survived, and try them once more with the checks of this checkout"
    parser.add_argument("--again", action="append", default=[], metavar="MUTANT", help=once_more)
    stages = [stage.name for stage in STAGES]
    parser.add_argument("--stage", choices=stages, help="of --again: only this stage; default all, until one catches")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    path = options.resume or CHECKOUT / ".cache" / f"mutants-{options.seed}.jsonl"
    if options.resume is None and path.exists():
        parser.error(f"{path} has results already: continue with --resume {path}, or remove it")
    page = path.with_suffix(".md")
    if options.summary_only:
        page.write_text(summary(Results(path)), "utf-8")
        return
    limit_this_process()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM; --resume goes on"))
    with tempfile.TemporaryDirectory(prefix="starpullm-mutants-") as directory:
        with machine_lock():  # two at a time would write the same files
            builder = Builder(Path(directory))
        try:
            known = Results(path).run
            run = describe_run(options.seed, builder, known)
            # The C sources have to be the same: a mutant whose line is another one is refused when it is made.
            results = Results(path, known if options.again else run)
        except ValueError as error:
            parser.error(str(error))
        assert results.run is not None
        every = strata(results.run.levels)
        chosen = [stratum for stratum in every if options.folder in (None, stratum.folder)]
        if not chosen:
            parser.error(f"--folder: found {options.folder}, expected one of {', '.join(s.folder for s in every)}")
        workplace = Workplace(Path(directory, "runs"), builder, path.with_suffix(".starpu"))
        laboratory = Laboratory(Path(directory), builder, results, workplace)
        again = [results.mutants[name] for name in options.again]
        for mutant in again:
            results.add("again", {"mutant": mutant.name, "commit": run.commit, "stage": options.stage})
        count = 0 if again else -(-options.count // len(every))
        todo = work(laboratory, chosen, count, deadline, again, options.stage)
        try:
            for left in todo:
                print(f"{left}; --resume {path} goes on")
        finally:
            page.write_text(summary(results), "utf-8")


if __name__ == "__main__":
    main()
