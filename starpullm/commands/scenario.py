"""``starpullm scenario``: runs sequences of calls drawn from seeds, and shortens the one in which a trainer differs."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import click

from starpullm.binding import allocations
from starpullm.checks.check_context import serve_checks
from starpullm.checks.result import Finding, Result
from starpullm.checks.scenario.call_sequence import LEVELS, CallSequence, draw, shrink
from starpullm.checks.scenario.scenarios import Scenarios, of_level, run_sequences
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, refuse_ranks
from starpullm.commands.render import OUT
from starpullm.processes.children import Pool
from starpullm.processes.service import Answered

IN_ONE_PROCESS = 20
START_SECONDS, SEQUENCE_SECONDS = 30.0, 5.0
"""The time limit of a process, and what each sequence adds to it for each pair of ranks, which may share one core."""


@click.command(
    "scenario", epilog=options.example("starpullm scenario --minutes 10 --ranks 2", "starpullm scenario --seed 17")
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the first sequence of calls.")
@click.option("--minutes", type=click.FloatRange(0), default=1.0, help="How long new sequences are started.")
@click.option("--ranks", type=click.IntRange(1), default=1, metavar="R", help="Ranks of each sequence.")
def command(seed: int, minutes: float, ranks: int) -> None:
    """Run random sequences of calls against a plain model.

    Trainers are compared with the plain model, a sequential GPT-2 in one C file. The first sequence in which a trainer
    differs from it, ends its process or doesn't end is shortened and printed as a program.

    Exit status: 0 if there was no such sequence; 1 if there was one.
    """
    refuse_ranks("the command starts those of --ranks itself")
    begun, num_run, compared = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="starpullm-scenario-") as directory, Pool(serve_checks) as pool:
        progress = Path(directory, "progress")
        for sequences in _blocks(seed, ranks):
            found = _run(pool, sequences, progress, ranks)
            num_run, compared = num_run + int(progress.read_text()) + 1, compared + found.compared
            if found.facts:
                _show(pool, sequences[found.facts["number"]], found, progress, ranks)
                sys.exit(EXIT_DIFFERENT)
            OUT.print(f"{num_run:,} sequences, {compared:,} comparisons, {time.monotonic() - begun:.0f} s")
            if time.monotonic() - begun > 60 * minutes:
                return


def _blocks(seed: int, ranks: int) -> Iterator[list[CallSequence]]:
    """Yield the sequences of a process each, from those of a seed on; they have one SIMD level."""
    stride, sequences = len(LEVELS), -(-IN_ONE_PROCESS // ranks)
    for first in count(seed, sequences * stride):
        for level in range(stride):
            yield [draw(first + level + number * stride, ranks) for number in range(sequences)]


def _run(pool: Pool, sequences: Sequence[CallSequence], progress: Path, ranks: int) -> Result:
    """Run sequences in a process of their own; if one ends badly, the facts are its number and kind of end."""
    progress.write_text("0")
    reply = pool.ask(
        None,
        partial(run_sequences, sequences=sequences, progress=progress),
        ranks=ranks,
        time_limit=START_SECONDS + SEQUENCE_SECONDS * ranks**2 * len(sequences),
        environment={**Scenarios().environment, **of_level(sequences[0].simd)},
    )
    if isinstance(reply, Answered):
        result: Result = reply.value
        return result
    number, kind = int(progress.read_text()), _kind_of_end(reply.text)
    bad = Scenarios().result(compared=0, findings=[Finding("")], number=number, kind=kind)
    return replace(bad, sentence=reply.text, findings=())


def _kind_of_end(text: str) -> str:
    """Return the first line on a process's end without numbers, paths and where it was: a shorter sequence has others.

    Of two errors, both of which end ranks with status 1, the sentence differs, such as that of impossible options.
    """
    return re.sub(r"\(.*?\)|\branks?\b|\S*[/\d]\S*", "", text.partition("\n")[0])


def _show(pool: Pool, sequence: CallSequence, found: Result, progress: Path, ranks: int) -> None:
    """Print how a sequence ended, and the program of the shortest one that ends in the same way."""
    OUT.print("\n".join([*found.lines(), f"sequence {sequence.machine['seed']} ends so; a shorter one:\n"]))

    def ends_the_same(other: CallSequence) -> bool:
        return bool(_run(pool, [other], progress, ranks).facts.get("kind") == found.facts["kind"])

    shortest = shrink(sequence, ends_the_same)
    ending = _run(pool, [shortest], progress, ranks).lines()
    setting = [f"{name}={value}" for name, value in allocations.preloading().items()]
    OUT.print(shortest.program("\n".join([*ending, *setting]), ranks))
