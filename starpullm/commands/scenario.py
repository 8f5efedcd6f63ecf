"""``starpullm scenario``: tells stories drawn from seeds, and shortens the one in which a trainer does otherwise."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import click

from starpullm.checks.isolation import Pool
from starpullm.checks.scenarios import tell_stories
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, refuse_ranks
from starpullm.commands.render import OUT
from starpullm.processes.children import Answered
from starpullm.scenario.story import LEVELS, NOT_A_STORY, SIMD_VARIABLE, Story, draw, shrink

IN_ONE_PROCESS = 20
STORY_SECONDS = 60.0
"""Time limit of a story."""


class Told(NamedTuple):
    """What stories came to: how much was compared and, if one ended badly, its number, kind of end and text."""

    compared: int
    number: int = 0
    kind: str = ""
    text: str = ""


class Seconds(click.ParamType[float]):
    """A time, such as 90s, 10m or 2h."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        number, unit = str(value)[:-1], str(value)[-1:]
        if unit not in "smh" or not number.isdecimal():
            self.fail(f'found "{value}", expected a time such as 90s, 10m or 2h', param, ctx)
        return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]


@click.command("scenario", epilog=options.example("starpullm scenario --time 10m", "starpullm scenario --seed 17"))
@click.option("--seed", type=click.IntRange(0), help="Tell the story of this seed alone.")
@click.option("--first", type=click.IntRange(0), default=0, help="Seed of the first story.")
@click.option("--time", "seconds", type=Seconds(), metavar="TIME", default="1m", help="How long new stories are begun.")
@click.option("--ranks", type=click.IntRange(1), default=1, metavar="R", help="Ranks of each story.")
def command(seed: int | None, first: int, seconds: float, ranks: int) -> None:
    """Do what nobody wrote: calls drawn from seeds, after which trainers are compared with a plain model.

    The plain model is a sequential GPT-2 in one C file. The first story in which a trainer does otherwise, ends its
    process or doesn't end is made as short as possible and printed as a program.

    Exit status: 0 if no story ended so; 1 if one did.
    """
    refuse_ranks("the command starts those of --ranks itself")
    begun, told_stories, compared = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="starpullm-scenario-") as directory, Pool() as pool:
        told = Path(directory, "told")
        for stories in _blocks(seed, first, ranks):
            found = _tell(pool, stories, told, ranks)
            told_stories, compared = told_stories + len(stories), compared + found.compared
            if found.kind:
                _show(pool, stories[found.number], found, told, ranks)
                sys.exit(EXIT_DIFFERENT)
            OUT.print(f"{told_stories:,} stories, {compared:,} comparisons, {time.monotonic() - begun:.0f} s")
            if time.monotonic() - begun > seconds:
                return


def _blocks(seed: int | None, first: int, ranks: int) -> Iterator[list[Story]]:
    """Yield the stories of a process each: that of the one seed, or those from the first one on, by SIMD level."""
    if seed is not None:
        yield [draw(seed, ranks)]
        return
    stride = len(LEVELS)
    for block in count(first, IN_ONE_PROCESS * stride):
        for level in range(stride):
            yield [draw(block + level + number * stride, ranks) for number in range(IN_ONE_PROCESS)]


def _tell(pool: Pool, stories: Sequence[Story], told: Path, ranks: int) -> Told:
    """Tell stories in a process of their own."""
    reply = pool.call_alone(
        tell_stories,
        ranks=ranks,
        time_limit=STORY_SECONDS * len(stories),
        environment={SIMD_VARIABLE: stories[0].simd},
        stories=stories,
        told=str(told),
    )
    if not isinstance(reply, Answered):
        return Told(0, int(told.read_text()), type(reply).__name__, reply.text)
    result = reply.value
    text = "\n".join(result.lines())
    return Told(result.compared, result.facts.get("number", 0), result.facts.get("kind", ""), text)


def _show(pool: Pool, story: Story, found: Told, told: Path, ranks: int) -> None:
    """Print how a story ended, and the program of the shortest one that ends alike."""
    OUT.print(f"{found.text}\nstory {story.scene['seed']} ends so; a shorter one:\n")

    def ends_alike(other: Story) -> bool:
        return found.kind != NOT_A_STORY and _tell(pool, [other], told, ranks).kind == found.kind

    shortest = shrink(story, ends_alike)
    OUT.print(shortest.script(_tell(pool, [shortest], told, ranks).text, ranks))
