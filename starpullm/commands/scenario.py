"""``starpullm scenario``: tells stories drawn from seeds, and shortens the one in which a trainer does otherwise."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import click

from starpullm.binding import allocations
from starpullm.checks.isolation import Pool
from starpullm.checks.result import Finding, Result
from starpullm.checks.scenarios import Scenarios, of_level, tell_stories
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, refuse_ranks
from starpullm.commands.render import OUT
from starpullm.processes.children import Answered, Hung
from starpullm.scenario.story import LEVELS, Story, draw, shrink

IN_ONE_PROCESS = 20
START_SECONDS, STORY_SECONDS = 30.0, 5.0
"""Time limit of a process, and what each of its stories adds to it for each pair of ranks: these may share one core."""

PATIENCE = 3.0
"""How many times as long a story may take that is told again."""


@click.command(
    "scenario", epilog=options.example("starpullm scenario --minutes 10 --ranks 2", "starpullm scenario --seed 17")
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the first story.")
@click.option("--minutes", type=click.FloatRange(0), default=1.0, help="How long new stories are begun.")
@click.option("--ranks", type=click.IntRange(1), default=1, metavar="R", help="Ranks of each story.")
def command(seed: int, minutes: float, ranks: int) -> None:
    """Compare trainers with a plain model, whatever the calls.

    The calls are drawn from seeds, and the plain model is a sequential GPT-2 in one C file. The first story in which a
    trainer does otherwise, ends its process or doesn't end is shortened and printed as a program.

    Exit status: 0 if no story ended so; 1 if one did.
    """
    refuse_ranks("the command starts those of --ranks itself")
    begun, told_stories, compared = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="starpullm-scenario-") as directory, Pool() as pool:
        told = Path(directory, "told")
        for stories in _blocks(seed, ranks):
            found = _tell(pool, stories, told, ranks)
            told_stories, compared = told_stories + int(told.read_text()) + 1, compared + found.compared
            if found.facts:
                _show(pool, stories[found.facts["number"]], found, told, ranks)
                sys.exit(EXIT_DIFFERENT)
            OUT.print(f"{told_stories:,} stories, {compared:,} comparisons, {time.monotonic() - begun:.0f} s")
            if time.monotonic() - begun > 60 * minutes:
                return


def _blocks(seed: int, ranks: int) -> Iterator[list[Story]]:
    """Yield the stories of a process each, from those of a seed on; they have one SIMD level."""
    stride, stories = len(LEVELS), -(-IN_ONE_PROCESS // ranks)
    for first in count(seed, stories * stride):
        for level in range(stride):
            yield [draw(first + level + number * stride, ranks) for number in range(stories)]


def _tell(pool: Pool, stories: Sequence[Story], told: Path, ranks: int, *, again: bool = True) -> Result:
    """Tell stories in a process of their own; if one ends badly, the facts are its number and kind of end.

    One that doesn't end in time is told `again`, alone and with more time: the machine may only be slow. The stories
    after it aren't told then.
    """
    told.write_text("0")
    reply = pool.call(
        ranks,
        tell_stories,
        time_limit=(START_SECONDS + STORY_SECONDS * ranks**2 * len(stories)) * (1 if again else PATIENCE),
        counts_allocations=True,
        environment=of_level(stories[0].simd),
        stories=stories,
        told=str(told),
    )
    if isinstance(reply, Answered):
        result: Result = reply.value
        return result
    number, kind = int(told.read_text()), _kind_of_end(reply.text)
    if again and isinstance(reply, Hung):
        ended = _tell(pool, [stories[number]], told, ranks, again=False)
        told.write_text(str(number))
        return replace(ended, facts={**ended.facts, "number": number} if ended.facts else {})
    bad = Scenarios().result(compared=0, findings=[Finding(reply.text)], number=number, kind=kind)
    return replace(bad, sentence=reply.text)


def _kind_of_end(text: str) -> str:
    """Return the first line on a process's end without numbers, paths and where it was: a shorter story has others.

    Of two errors, both of which end ranks with status 1, the sentence differs, such as that of impossible options.
    """
    return re.sub(r"\(.*?\)|\branks?\b|\S*[/\d]\S*", "", text.partition("\n")[0])


def _show(pool: Pool, story: Story, found: Result, told: Path, ranks: int) -> None:
    """Print how a story ended, and the program of the shortest one that ends alike."""
    OUT.print("\n".join([*found.lines(), f"story {story.scene['seed']} ends so; a shorter one:\n"]))

    def ends_alike(other: Story) -> bool:
        return bool(_tell(pool, [other], told, ranks, again=False).facts.get("kind") == found.facts["kind"])

    shortest = shrink(story, ends_alike)
    ending = _tell(pool, [shortest], told, ranks, again=False).lines()
    setting = [f"{name}={value}" for name, value in allocations.preloading().items()]
    OUT.print(shortest.program("\n".join([*ending, *setting]), ranks))
