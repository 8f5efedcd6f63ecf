"""``starpullm doctor``: what works on this machine, and whether libm's vector versions have its bits."""

from __future__ import annotations

import math
import sys

import click

from starpullm.checks.kernels.libm import NUM_INPUTS, check_libm, vector_levels
from starpullm.checks.result import Outcome, Result
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.machine import inspect_machine, rows_of, vector_libm


@click.command(
    "doctor",
    epilog=options.example(
        "starpullm doctor",
        "starpullm doctor --prove-libm --every 1000",
    ),
)
@click.option("--prove-libm", is_flag=True, help="Compare the vector versions of libm's functions with libm.")
@click.option(
    "--every",
    type=click.IntRange(min=1, max=NUM_INPUTS),
    default=1,
    metavar="N",
    help="With --prove-libm: compare one block of inputs in N. Faster, but proves nothing.",
)
@options.as_json
def command(prove_libm: bool, every: int, as_json: bool) -> None:
    """Show what works on this machine, and what does not and why.

    With --prove-libm, compare instead all 2^32 inputs of each function at each SIMD level, which takes minutes. The
    exit status is then 1 if some results differ.
    """
    if prove_libm:
        _prove_libm(every, as_json)
        return
    machine = inspect_machine()
    if as_json:
        print_json(machine)
        return
    for name, text in rows_of(machine):
        OUT.print(f"{name:<19}{text}")
    for finding in machine["findings"]:
        OUT.print(f"{'problem' if finding['is_problem'] else 'note'}: {finding['sentence']}")


def _prove_libm(every: int, as_json: bool) -> None:
    results: list[Result] = []
    known = vector_libm()
    levels = vector_levels()
    with progress_bar(hidden=as_json) as progress:
        total = NUM_INPUTS / every / 2**20 * len(known) * len(levels)
        bar = progress.add_task("libm, 2^20 inputs", total=math.ceil(total))
        for function in known:
            for level in levels:
                result = check_libm(
                    function, level, every=every, progress=lambda inputs: progress.advance(bar, inputs / 2**20)
                )
                results.append(result)
                if not as_json:
                    OUT.print(f"{result.lines()[0]}, {result.facts['seconds']:.1f} s")
    if as_json:
        print_json([result.as_json() for result in results])
    else:
        for function, vector in known.items():
            used = "known, its vector versions are used" if vector["used"] else "unknown, kernels call libm"
            OUT.print(f"this libm's {function}: fingerprint {vector['fingerprint']}, {used}")
    if any(result.outcome is Outcome.FAILED for result in results):
        sys.exit(EXIT_DIFFERENT)
