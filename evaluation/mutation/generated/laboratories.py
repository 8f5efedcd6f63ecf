"""Makes mutants of the C sources or of the package, and tries them."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..mutants import Builder
from ..patches import PatchError
from . import candidates, package
from .candidates import VECTOR_FOLDER, Candidate, Stratum, shuffled
from .results import Mutant, Results
from .stages import OF_LIBRARY, STAGES, Outcome, Stage, Workplace, stages_of_package

SOON = {
    VECTOR_FOLDER: ("quick", "kernels"),
    **dict.fromkeys(("graph", "codelets", "data"), ("quick", "two ranks, quick")),
}
"""The stages that catch most mutants of a folder in a second: they come first."""


class Laboratory(ABC):
    """Makes mutants and tries them.

    Parameters
    ----------
    directory
        For what is made.
    builder
        The unchanged library.
    workplace
        Where stages run.
    results
        What has been tried, to which the results are added.
    seed
        Of the order of the candidates.
    only
        The names of the stages that are tried; none: all.
    """

    def __init__(
        self,
        directory: Path,
        builder: Builder,
        workplace: Workplace,
        results: Results,
        seed: int,
        only: Collection[str] = (),
    ) -> None:
        self._directory = directory
        self._builder = builder
        self._workplace = workplace
        self._results = results
        self._seed = seed
        self._only = only
        self._measured: set[tuple[Stage, str | None]] = set()
        self._orders: dict[Stratum, list[Candidate]] = {}
        self._originals: dict[str, str] = {}

    def try_next(self, stratum: Stratum) -> bool:
        """Try the next mutant of a stratum; return whether there is one."""
        known = self._results.of(str(stratum))
        seen = {mutant.objects for mutant in known}
        first = known[-1].position + 1 if known else 0
        if stratum not in self._orders:
            self._orders[stratum] = shuffled(list(self._candidates(stratum)), self._seed, stratum)
        for position, candidate in enumerate(self._orders[stratum][first:], first):
            with tempfile.TemporaryDirectory(prefix="built-", dir=self._directory) as built:
                objects = self._make(candidate, stratum.level, Path(built))
                if objects is None or objects in seen:
                    continue
                mutant = Mutant(str(stratum), position, candidate, objects, [])
                self._run_stages(mutant, stratum, Path(built))
            self._results.add(mutant)
            return True
        return False

    def _run_stages(self, mutant: Mutant, stratum: Stratum, built: Path) -> None:
        """Run the stages until one catches the mutant; each is first run without a mutant."""
        for stage in self._stages(mutant.candidate, stratum):
            if self._only and stage.name not in self._only:
                continue
            level = stratum.level if stage is STAGES[0] else None
            if (stage, level) not in self._measured:
                self._workplace.measure(stage, level)
                self._measured.add((stage, level))
            outcome = self._try(stage, stratum.level, built)
            mutant.outcomes.append(outcome)
            print(f"{mutant.stratum} {mutant.position}: {outcome}", flush=True)
            if outcome.test:
                return

    @abstractmethod
    def _candidates(self, stratum: Stratum) -> Iterator[Candidate]:
        """Yield the candidates of a stratum."""

    @abstractmethod
    def _make(self, candidate: Candidate, level: str | None, directory: Path) -> str | None:
        """Make a mutant in a directory; return a hash of it, None if it can't be made or is the same as unchanged."""

    @abstractmethod
    def _stages(self, candidate: Candidate, stratum: Stratum) -> Sequence[Stage]:
        """Return the stages for a mutant."""

    @abstractmethod
    def _try(self, stage: Stage, level: str | None, made: Path) -> Outcome:
        """Run a stage on the mutant in a directory."""


class LibraryLaboratory(Laboratory):
    """Compiles changed C files; it compares their objects."""

    def _candidates(self, stratum: Stratum) -> Iterator[Candidate]:
        for candidate in candidates.candidates_of(self._builder.sources, stratum.folder):
            if self._objects(candidate, stratum.level):  # other systems' files are not compiled
                yield candidate

    def _stages(self, candidate: Candidate, stratum: Stratum) -> Sequence[Stage]:
        soon = SOON.get(stratum.folder, ("quick",))
        own = replace(STAGES[-1], files=(*STAGES[-1].files, *OF_LIBRARY.get(stratum.folder, ())))
        return sorted([*STAGES[:-1], own], key=lambda stage: stage.name not in soon)

    def _try(self, stage: Stage, level: str | None, made: Path) -> Outcome:
        return self._workplace.try_mutant(stage, made / "libstarpullm.so", level)

    def _make(self, candidate: Candidate, level: str | None, directory: Path) -> str | None:
        self._builder.copy_sources(directory)
        candidate.apply(directory)
        names = self._objects(candidate, level)
        try:
            found = self._hash(names, directory)
            self._builder.link(names, directory)
        except (PatchError, subprocess.TimeoutExpired):
            return None
        shutil.rmtree(directory / "native")
        return None if found == self._unchanged(names) else found

    def _objects(self, candidate: Candidate, level: str | None) -> list[str]:
        """Return the objects to compile: of a vector kernel only those of the level."""
        objects = self._builder.objects_of(candidate.file)
        if "/kernels/simd/" not in candidate.file:
            return objects
        return [name for name in objects if level_of(name) in (None, level)]

    def _unchanged(self, objects: list[str]) -> str:
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


class PackageLaboratory(Laboratory):
    """Changes copies of the package; it compares compiled modules."""

    def _candidates(self, stratum: Stratum) -> Iterator[Candidate]:
        return package.candidates_of(self._workplace.package, stratum.folder)

    def _stages(self, candidate: Candidate, stratum: Stratum) -> Sequence[Stage]:
        return stages_of_package(stratum.folder, candidate.file.removesuffix(".py").replace("/", "."))

    def _try(self, stage: Stage, level: str | None, made: Path) -> Outcome:
        return self._workplace.try_mutant(stage, self._builder.library, package=made)

    def _make(self, candidate: Candidate, level: str | None, directory: Path) -> str | None:
        text = (self._workplace.package / candidate.file).read_text("utf-8")
        code = package.code_of("\n".join(candidate.applied(text.splitlines())))
        if code in (None, package.code_of(text)):
            return None
        shutil.copytree(self._workplace.package, directory, dirs_exist_ok=True)
        candidate.apply(directory)
        return code


def level_of(name: str) -> str | None:
    """Return the level of vector instructions that an object is compiled for; None: all."""
    found = re.search(r"kernels_(\w+)\.dir/", name)
    return found[1] if found else None
