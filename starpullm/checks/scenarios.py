"""Stories that nobody wrote: calls drawn from seeds, after which trainers are compared with a plain model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from starpullm.checks.cases import Asked, Case
from starpullm.checks.check import Check, Needs, Where, check
from starpullm.checks.place import Workplace, environment
from starpullm.checks.result import Finding, Result
from starpullm.scenario.story import LEVELS, SIMD_VARIABLE, Story, draw, tell

STORIES, OVER_RANKS = 4, 3
"""Number of stories of a case, which take 3 to 5 s (2 cores, AMD EPYC, 2026-11-28); the suite's limit is 60 s."""

PARTS = 3
"""Number of cases of a SIMD level, on one rank."""


@check
class Scenarios(Check):
    """Tell stories: what their calls can read of trainers is compared with a plain model that did the same.

    A story has sizes, a partition, a scheduler and calls: steps, several in flight, evaluations, states and checkpoints
    that are saved, closed and resumed from with other options, a second trainer, refusals. The plain model is one C
    file, ``native/plain/gpt2.c``. A failure names the seed; ``starpullm scenario --seed`` shortens the story.
    """

    family, unit = "scenario", "comparisons"
    claim = "whatever the calls, trainers have the bits of a plain sequential one and leave nothing in memory"
    fault = "a trainer does otherwise than a plain sequential one"
    cannot_see = "calls and sizes that weren't drawn; how long it takes"
    needs = Needs(Where.ALONE, counts_allocations=True)

    def cases(self, asked: Asked, ranks: int) -> Iterator[Case]:
        """Yield cases for the chosen SIMD level, mostly the machine's best, and as many for the plain kernels."""
        parts = range(1, 1 + (PARTS if ranks == 1 else 1))
        yield from (Case(what=f"{level or 'best'}-{part}", seed=asked.seed) for level in LEVELS for part in parts)

    def run(self, place: Workplace, case: Case) -> Result:  # type: ignore[override]
        """Tell the stories of seeds from the case's on."""
        ranks = place.comm.Get_size() if place.comm else 1
        count, parts = (STORIES, PARTS) if ranks == 1 else (OVER_RANKS, 1)
        level, _, part = case.what.partition("-")
        first = len(LEVELS) * count * (parts * (case.seed - 1) + int(part) - 1) + ["best", "ref"].index(level)
        stories = [draw(first + number * len(LEVELS), ranks) for number in range(count)]
        with environment(**of_level(stories[0].simd)):
            return self.of(place, stories)

    def of(self, place: Workplace, stories: Sequence[Story], told: Path | None = None) -> Result:
        """Tell stories of one SIMD level until one ends badly; ``told`` is a file for the number of the present one."""
        compared = 0
        for number, story in enumerate(stories):
            if told is not None and not (place.comm and place.comm.Get_rank()):
                told.write_text(str(number))
            ending = tell(story, place.directory, place.comm)
            compared += ending.compared
            if ending.kind:
                finding = Finding(ending.sentence)
                return self.result(compared=compared, findings=[finding], number=number, kind=ending.kind)
        return self.result(compared=compared, note=f"{len(stories)} stories")


def of_level(simd: str) -> dict[str, str]:
    """Return the environment for the stories of a SIMD level."""
    return {SIMD_VARIABLE: simd} if simd else {}


def tell_stories(place: Workplace, *, stories: Sequence[Any], told: str) -> Result:
    """Tell stories of which this is the JSON."""
    return Scenarios().of(place, [Story.from_json(*story) for story in stories], Path(told))
