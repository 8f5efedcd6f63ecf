"""The results of a run as lines of JSON, to which an interrupted run is continued."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..patches import CHECKOUT
from .candidates import Candidate
from .stages import STAGES, Outcome

__all__ = ["SUITE", "Mutant", "Results", "Run", "checked_out", "in_suite"]


@dataclass(frozen=True)
class Run:
    """What a run is made with. Results of runs that differ in more than the commit are not mixed.

    Parameters
    ----------
    seed
        Of the sample.
    commit
        Of the checkout, with "changed" where its sources differ from the commit's.
    sources
        Hash of the C sources and of the package.
    tool, compiler, machine
        Versions and name.
    levels
        Of vector instructions that this machine has.
    """

    seed: int
    commit: str
    sources: str
    tool: str
    compiler: str
    machine: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class Mutant:
    """A candidate that compiles, and whose objects are other ones than those of the sources and of earlier mutants.

    Parameters
    ----------
    name
        Stratum and number.
    stratum, level
        Where it comes from; the level that it is run at, None: the best one.
    position
        Its place in the random order of the stratum's candidates.
    candidate
        The change.
    objects
        Hash of its stripped objects.
    left_out
        How many candidates before it were left out, by the reason.
    """

    name: str
    stratum: str
    level: str | None
    position: int
    candidate: Candidate
    objects: str
    left_out: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the fields; those of the candidate as a list, without their names."""
        fields = {name: value for name, value in asdict(self).items() if name != "stratum"}
        return {**fields, "candidate": list(asdict(self.candidate).values())}


class Results:
    """What has been tried.

    Parameters
    ----------
    path
        Of the file; it is read if it exists, and every entry is added to it at once.
    run
        What this run is made with; None: whatever the file says.

    Raises
    ------
    ValueError
        If the file has the results of another run.
    """

    run: Run | None = None
    """What the results were made with."""

    def __init__(self, path: Path, run: Run | None = None) -> None:
        self._path = path
        self.mutants: dict[str, Mutant] = {}
        self.outcomes: dict[str, dict[str, Outcome]] = {}
        self.baselines: dict[tuple[str, str | None], float] = {}
        """By stage and level, the seconds without a mutant."""
        self.again: dict[str, str] = {}
        """Survivors that were tried again, with the commit whose checks they were tried with."""
        self.exhausted: dict[str, dict[str, int]] = {}
        """Strata of which all candidates have been tried, with how many were left out after the last mutant."""
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                self._take(json.loads(line))
        if run is not None:
            if self.run is None:
                self.add("run", asdict(run))
            different = [name for name in vars(run) if name != "commit" and vars(self.run)[name] != vars(run)[name]]
            if different:
                raise ValueError(f"{path}: has the results of a run with other {', '.join(different)}")

    def add(self, kind: str, values: dict[str, Any]) -> None:
        """Add an entry, here and in the file."""
        entry = {"kind": kind, **values}
        self._take(json.loads(json.dumps(entry)))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n")

    def _take(self, entry: dict[str, Any]) -> None:
        kind = entry.pop("kind")
        if kind == "run":
            self.run = Run(**{**entry, "levels": tuple(entry["levels"])})
        elif kind == "mutant":
            name, candidate = entry["name"], Candidate(*entry["candidate"])
            fields = {"stratum": name.rpartition(" ")[0], "level": None, **entry, "candidate": candidate}
            self.mutants[name] = Mutant(**fields)
        elif kind == "baseline":
            self.baselines[entry["stage"], entry["level"]] = entry["seconds"]
        elif kind == "outcome":
            name = entry.pop("mutant")
            outcome = Outcome(**{"how": None, "check": "", "finding": "", **entry})
            self.outcomes.setdefault(name, {})[outcome.stage] = outcome
        elif kind == "again":
            if entry.get("stage"):
                self.outcomes.get(entry["mutant"], {}).pop(entry["stage"], None)
            else:
                self.outcomes.pop(entry["mutant"], None)
            self.again[entry["mutant"]] = entry["commit"]
        elif kind == "exhausted":
            self.exhausted[entry["stratum"]] = entry.get("left_out", {})

    def of_stratum(self, stratum: str) -> list[Mutant]:
        """Return the mutants of a stratum."""
        return [mutant for mutant in self.mutants.values() if mutant.stratum == stratum]

    def catch(self, mutant: Mutant) -> Outcome | None:
        """Return the outcome of the stage that caught a mutant, if one did; of the suite's rather than of another."""
        caught = [found for found in self.outcomes.get(mutant.name, {}).values() if found.how]
        return next(filter(in_suite, caught), caught[0] if caught else None)

    def is_finished(self, mutant: Mutant) -> bool:
        """Return whether a mutant was caught or has passed the suite and its run on ranks."""
        tried = self.outcomes.get(mutant.name, {})
        return any(found.how for found in tried.values() if in_suite(found)) or all(
            stage.name in tried for stage in SUITE
        )


SUITE = STAGES[:-2]
"""Without the project's own tests."""


def in_suite(outcome: Outcome) -> bool:
    """Return whether an outcome is that of a stage of the suite."""
    return outcome.stage in {stage.name for stage in SUITE}


def checked_out() -> str:
    """Return the checkout's commit, and whether its sources differ from it."""
    git = ["git", "-C", str(CHECKOUT)]
    commit = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True).strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "native", "starpullm"], check=False).returncode
    return f"{commit}, changed" if changed else commit
