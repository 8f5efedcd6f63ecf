"""``starpullm fuzz``: random programs for StarPU, whose tasks check what they see against a serial oracle."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, refuse_ranks
from starpullm.commands.render import ERR, OUT, print_json
from starpullm.errors import FileError, InvalidArgumentError
from starpullm.fuzz.search import search

_EXAMPLES = ("starpullm fuzz --minutes 10", "starpullm fuzz --seed 7 --configuration scheduler=dmdas,workers=5")


@click.command("fuzz", epilog=options.example(*_EXAMPLES))
@click.option("--seed", default="1", metavar="S", help="First seed; each has a configuration and 40 programs.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=1.0, help="How long to search.")
@click.option(
    "--configuration",
    default="",
    metavar="NAME=VALUE,…",
    show_default="drawn by the seed",
    help="Those to fix of scheduler, workers (1 to 8), nodes (1, 2), disk (0, 1), ranks (1 to 4), "
    "parallel_workers (0, 1), perturb (a seed).",
)
@click.option(
    "--output",
    type=options.PATH,
    default="fuzz-failure.c",
    metavar="FILE",
    help="Where the C program of a failure is written.",
)
@options.as_json
def command(seed: str, minutes: float, configuration: str, output: Path, as_json: bool) -> None:
    """Search for mistakes of StarPU with random programs.

    The programs run with the StarPU that pkg-config finds. Their tasks check what they see at that moment, and how
    often they run. A failure is shrunk and written as a C program of its own.

    Exit status: 0 if no program failed; 1 if one did; 2 for bad usage, or a configuration that this StarPU can't have.
    """
    refuse_ranks("programs run in one process")
    if not seed.isdecimal() or int(seed) >= 1 << 62:
        raise InvalidArgumentError(f'--seed: found "{seed}", expected a number from 0 to 2**62 - 1')
    start, current = time.monotonic(), int(seed)

    def progress(number: int, drawn: object, total: int) -> None:
        nonlocal current
        current = number
        if not as_json:
            ERR.print(f"seed {number}: {drawn}; {total} programs so far")

    try:
        found, total = search(int(seed), minutes * 60, configuration, progress)
    except KeyboardInterrupt:
        ERR.print(f"To go on from here: --seed {current}")
        raise
    seconds = time.monotonic() - start
    searched = found.failed_at - start if found else seconds
    rate = f"{total} programs, {total / searched:.1f} a second"
    if found is not None:
        try:
            output.write_text(found.c_program())
        except OSError as error:
            raise FileError(f"{output}: can't be written: {error.strerror}", error.errno, str(output)) from error
    if as_json:
        print_json({"programs": total, "seconds": seconds, "failure": found and found.as_json(output)})
    elif found is None:
        OUT.print(f"No failure: {rate}; the last seed was {current}.")
    else:
        OUT.print(f"Failure: {found.failure.sentence}")
        OUT.print(f"With --seed {found.seed}, in {found.configuration}, after {searched:.0f} s ({rate}).")
        OUT.print(f"The same program failed in {found.failed} of {found.tried} more runs.")
        if found.failure.details:
            OUT.print(found.failure.details)
        OUT.print(f"A C program of {found.program.tasks} tasks that needs StarPU alone: {output}")
    sys.exit(EXIT_DIFFERENT if found else 0)
