"""``starpullm probe``: asks of a StarPU program whether its results depend on the schedule."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from starpullm.checks.result import Outcome
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT, EXIT_NOT_COMPARABLE, refuse_ranks
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.probe import probe_program
from starpullm.probe.elements import TYPES
from starpullm.probe.judge import DEFAULT_RUNS, DEFAULT_WORKERS, NUM_STANDARD_RUNS
from starpullm.probe.replay import replay_program

EXIT_UNTRUE = 5
"""Tasks do something else than they declare, and no run has shown another result."""
_STATUS = {Outcome.PASSED: 0, Outcome.FAILED: EXIT_DIFFERENT, Outcome.NOT_COMPARABLE: EXIT_NOT_COMPARABLE}


@click.command(
    "probe",
    epilog=options.example(
        "starpullm probe -- ./heat -n 8",
        "starpullm probe --runs 20 --workers 8 -- ./cholesky",
        "starpullm probe --workers 2 -- mpirun -n 2 ./stencil",
    ),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("program", metavar="PROGRAM", nargs=1)
@click.argument("arguments", metavar="[ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--runs", type=int, default=DEFAULT_RUNS, metavar="N", help="Runs in perturbed schedules.")
@click.option("--seed", type=int, default=1, metavar="S", help="Seed of the first perturbed schedule.")
@click.option("--workers", type=int, default=DEFAULT_WORKERS, metavar="W", help="CPU workers that StarPU is given.")
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="Time limit of each run; default: 300 for the first, then about 10 times the slowest so far, at least 10.",
)
@click.option("--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep all logs, in a new folder.")
@click.option(
    "--replay", metavar="SCHEDULE", help="Only run this schedule again, with PROGRAM's input and output here."
)
@click.option("--wrapper", metavar="COMMAND", default="", help="With --replay: before PROGRAM, such as 'gdb --args'.")
@click.option(
    "--sums",
    type=click.Choice(["free", "ordered"]),
    default="free",
    help="Order of accesses with REDUX and COMMUTE: any, or that of submission, to compare bits.",
)
@options.devices
@click.option("--expect-status", type=int, default=0, metavar="N", help="With which PROGRAM ends if all is well.")
@click.option("--no-poison", is_flag=True, help="Leave out the runs with poison.")
@click.option(
    "--tolerance", metavar="4ulp|1e-6", help="Bound of what a free order (REDUX, COMMUTE) may change: ULP, or relative."
)
@click.option("--tolerance-type", type=click.Choice(list(TYPES)), help="Type of the numbers in these contents.")
@click.option(
    "--intended", metavar="FILE", type=click.Path(path_type=Path), help="Findings that are no faults, with reasons."
)
@options.as_json
def command(
    program: str,
    arguments: tuple[str, ...],
    runs: int,
    no_poison: bool,
    replay: str | None,
    wrapper: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Check whether a StarPU program depends on the schedule.

    PROGRAM is run with each ARG unchanged, with a scheduling policy that StarPU loads: in the reference schedule (one
    worker, in the order of submission) twice, once more with the data protected that the running task doesn't declare,
    twice with poison in what tasks declare as written only, and in perturbed schedules. The contents of all handles
    after all tasks are compared. PROGRAM may be a launcher of ranks on this machine, such as mpirun. Each run gets the
    same standard input, and writes the files that PROGRAM writes.

    Exit status: 0 if they are the same and every task does what it declares; 1 if not, or if the program fails, crashes
    or hangs; 2 for bad usage or a program that can't be judged; 3 if its results change from run to run by themselves,
    or StarPU had one worker; 5 if they are the same, and a task does something else than it declares.
    """
    refuse_ranks("PROGRAM may be the launcher of ranks")
    whole = (program, *arguments)
    if replay is not None:
        chosen = {name: settings[name] for name in ("workers", "sums", "devices")}
        sys.exit(replay_program(whole, replay, **chosen, wrapper=shlex.split(wrapper)))
    with progress_bar(hidden=as_json) as progress:
        bar = progress.add_task("probe", total=runs + NUM_STANDARD_RUNS - 2 * no_poison)
        result = probe_program(
            whole, runs=runs, poison=not no_poison, progress=lambda: progress.advance(bar), **settings
        )
    if as_json:
        print_json(result.as_json())
    else:
        for line in result.lines():
            OUT.print(line)
    sys.exit(EXIT_UNTRUE if result.is_only_untrue else _STATUS[result.outcome])
