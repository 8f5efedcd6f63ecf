"""The results of a run as lines of JSON, to which an interrupted run is continued, and their summary as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from . import candidates, package
from .candidates import Candidate
from .stages import SUITE, Outcome


class Mutant(NamedTuple):
    """A candidate that compiles, and whose objects are other ones than those of the sources and of earlier mutants.

    ``position`` is its place in the random order of the stratum's candidates, ``objects`` a hash of its objects or of
    the compiled module, and ``outcomes`` are those of the stages that it went through: up to the first that caught it.
    """

    stratum: str
    position: int
    candidate: Candidate
    objects: str
    outcomes: list[Outcome]

    @property
    def catch(self) -> Outcome | None:
        """What caught it; None: nothing."""
        return self.outcomes[-1] if self.outcomes[-1].test else None

    @property
    def is_caught(self) -> bool:
        """Whether the suite or its run on ranks has caught it."""
        return self.catch is not None and self.catch.stage in {stage.name for stage in SUITE}


class Results:
    """What has been tried; ``run`` says with what, and results of runs that differ in it are not mixed.

    Raises
    ------
    ValueError
        If the file has the results of another run.
    """

    def __init__(self, path: Path, run: dict[str, str]) -> None:
        self._path, self._run = path, run
        self.mutants: list[Mutant] = []
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if not lines:
            self._write(run)
        elif different := sorted({name for name, _ in run.items() ^ json.loads(lines[0]).items()}):
            raise ValueError(f"{path}: has the results of a run with other {', '.join(different)}")
        for stratum, position, candidate, objects, outcomes in map(json.loads, lines[1:]):
            tried = [Outcome(*outcome) for outcome in outcomes]
            self.mutants.append(Mutant(stratum, position, Candidate(*candidate), objects, tried))

    def add(self, mutant: Mutant) -> None:
        """Add a mutant that has been tried, here and in the file."""
        self.mutants.append(mutant)
        self._write(mutant)

    def of(self, stratum: str) -> list[Mutant]:
        """Return the mutants of a stratum."""
        return [mutant for mutant in self.mutants if mutant.stratum == stratum]

    def summary(self) -> str:
        """Return the page. A survivor counts as not caught, also one that no result can show."""
        strata = dict.fromkeys(mutant.stratum for mutant in self.mutants)
        survivors = [mutant for mutant in self.mutants if not mutant.is_caught]
        survivors.sort(key=lambda mutant: mutant.catch is not None)
        is_package = self._run.get("language") == "python"
        lines = [
            "# Generated mutants",
            "",
            *(f"- {name}: {value}" for name, value in self._run.items()),
            "",
            "A survivor that no result can show (an equivalent mutant) counts as not caught here, so each rate is a "
            "lower bound. The interval is that of Clopper and Pearson, 95 %.",
            *(["What a test of the project has caught was not tried on all of the suite."] if is_package else []),
            "",
            "| folder | tried | caught by suite | by own tests | rate of suite | of both | seconds |",
            "|---|---|---|---|---|---|---|",
            *(_row(name, self.of(name)) for name in strata),
            _row("**all**", self.mutants),
            "",
            "| stage | tried | caught |",
            "|---|---|---|",
            *self._stages(),
            "",
            "Left out by rule:",
            "",
            *(f"- {what}: {why}." for what, why in (package if is_package else candidates).LEFT_OUT.items()),
            "",
            "## Survivors of the suite",
            "",
            *map(_entry, survivors),
        ]
        return "\n".join(lines)

    def _stages(self) -> Iterator[str]:
        every = [outcome for mutant in self.mutants for outcome in mutant.outcomes]
        for stage in dict.fromkeys(outcome.stage for outcome in every):
            caught = [bool(outcome.test) for outcome in every if outcome.stage == stage]
            yield f"| {stage} | {len(caught)} | {sum(caught)} |"

    def _write(self, entry: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n")


def confidence_interval(caught: int, tried: int) -> tuple[float, float]:
    """Return the 95 % interval of Clopper and Pearson for the probability that a mutant is caught."""
    from scipy.stats import binomtest

    interval = binomtest(caught, tried).proportion_ci(confidence_level=0.95, method="exact")
    return float(interval.low), float(interval.high)


def _row(name: str, tried: Sequence[Mutant]) -> str:
    if not tried:
        return f"| {name} | 0 | 0 | 0 | — | — | — |"
    seconds = [sum(outcome.seconds for outcome in mutant.outcomes) for mutant in tried if mutant.catch]
    by_suite = sum(mutant.is_caught for mutant in tried)
    rates = [_rate(by_suite, len(tried)), _rate(len(seconds), len(tried))]
    middle = f"{median(seconds):.1f}" if seconds else "—"
    cells = [name, len(tried), by_suite, len(seconds) - by_suite, *rates, middle]
    return f"| {' | '.join(map(str, cells))} |"


def _rate(caught: int, tried: int) -> str:
    low, high = confidence_interval(caught, tried)
    return f"{caught / tried:.1%} ({low:.1%} to {high:.1%})"


def _entry(mutant: Mutant) -> str:
    fate = f"caught by the project's test `{mutant.catch.test}`" if mutant.catch else "not caught"
    return f"{mutant.stratum} (`{mutant.candidate.rule}`): {fate}.\n\n```diff\n{mutant.candidate.diff}\n```\n"
