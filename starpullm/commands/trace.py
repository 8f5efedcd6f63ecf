"""``starpullm trace``: describes a trace of ``train --trace``, or writes it in the format of another tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from starpullm.commands import options
from starpullm.commands.render import OUT
from starpullm.files.atomic import atomic_write
from starpullm.traces.dot import dot_lines
from starpullm.traces.paje import paje_lines
from starpullm.traces.perfetto import perfetto_lines
from starpullm.traces.summary import summary_lines
from starpullm.traces.traced_run import TracedRun, load_run

FORMATS: Mapping[str, Callable[[TracedRun], Iterator[str]]] = {
    "perfetto": perfetto_lines,
    "paje": paje_lines,
    "dot": dot_lines,
}
"""What is written of a run, by the name of the format."""


@click.command(
    "trace",
    epilog=options.example(
        "starpullm train --checkpoint model.bin --tokens 'train_*.bin' --steps 3 --trace run.trace",
        "starpullm trace run.trace",
        "starpullm trace run.trace --format perfetto --output run.json",
        "starpullm trace run.trace --format dot --steps 0-0 --output step.dot",
    ),
)
@click.argument("run", type=options.PATH)
@click.option("--format", "name", type=click.Choice(tuple(FORMATS)), help="Format to write.")
@click.option("--output", type=options.PATH, metavar="FILE", help="File to write.")
@click.option(
    "--steps",
    metavar="FIRST-LAST",
    show_default="all",
    help="Submissions (steps and evaluations), numbered from 0.",
)
def command(run: Path, name: str | None, output: Path | None, steps: str | None) -> None:
    """Describe a trace, or write it for another tool.

    RUN is a file that `train --trace` has written. perfetto: JSON for ui.perfetto.dev and chrome://tracing. paje: for
    ViTE, PajeNG and StarVZ. dot: the task graph, for Graphviz.
    """
    if (name is None) != (output is None):
        raise click.UsageError("expected --format and --output together")
    traced = load_run(run)
    if steps is not None:
        traced = traced.steps(*_numbers(steps))
    if name is None or output is None:
        for line in summary_lines(traced):
            OUT.print(line)
        return
    with atomic_write(output) as file:
        for line in FORMATS[name](traced):
            file.write(line.encode())
    OUT.print(f"saved {output}")


def _numbers(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise click.UsageError(f'--steps: found "{text}", expected FIRST-LAST, for example 0-2')
    return int(match[1]), int(match[2])
