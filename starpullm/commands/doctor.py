"""``starpullm doctor``: what works on this machine, what a model's training takes of it, and libm's vector versions."""

from __future__ import annotations

import math
import sys
from typing import Any

import click

from starpullm.checks.kernels.libm import NUM_INPUTS, check_libm, vector_levels
from starpullm.checks.result import Outcome, Result
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.data.models import MODELS
from starpullm.machine import inspect_machine, rows_of, vector_libm
from starpullm.memory import available_memory
from starpullm.predict.needs import GROUPS, needs


@click.command(
    "doctor",
    epilog=options.example(
        "starpullm doctor",
        "starpullm doctor --config gpt2-xl --batch-size 1",
        "starpullm doctor --prove-libm --every 1000",
    ),
)
@click.option("--config", type=click.Choice([*MODELS]), help="Show the memory that training this model takes.")
@click.option("--batch-size", type=int, show_default="4", help="With --config: sequences on each rank.")
@click.option("--seq-len", type=int, show_default="the model's longest", help="With --config: tokens per sequence.")
@click.option("--ranks", type=int, show_default="1", help="With --config: number of ranks.")
@click.option("--prove-libm", is_flag=True, help="Compare the vector versions of libm's functions with libm.")
@click.option(
    "--every",
    type=click.IntRange(min=1, max=NUM_INPUTS),
    default=1,
    metavar="N",
    help="With --prove-libm: compare one block of inputs in N. Faster, but proves nothing.",
)
@options.as_json
def command(prove_libm: bool, every: int, as_json: bool, config: str | None, **sizes: Any) -> None:
    """Show what works on this machine, and what does not and why.

    With --config, show instead the bytes of a trainer's buffers on the rank that has most, without StarPU's own for
    messages, and the options that take less.

    With --prove-libm, compare instead all 2^32 inputs of each function at each SIMD level, which takes minutes. The
    exit status is then 1 if some results differ.
    """
    if config and prove_libm:
        raise click.UsageError("expected at most one of --config and --prove-libm")
    given = {name: value for name, value in sizes.items() if value is not None}
    if config:
        _show_memory(config, as_json, **given)
        return
    if given:
        raise click.UsageError(f"expected --config with --{next(iter(given)).replace('_', '-')}")
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


def _show_memory(config: str, as_json: bool, batch_size: int = 4, seq_len: int | None = None, ranks: int = 1) -> None:
    model, available = MODELS[config], available_memory()
    length = model.max_seq_len if seq_len is None else seq_len
    found = list(needs(model, batch_size=batch_size, seq_len=length, ranks=ranks))
    if as_json:
        rows = [{"options": need.options, **need.groups, "bytes": need.together} for need in found]
        print_json({"available": available, "needs": rows})
        return
    OUT.print(f"{config}, B = {batch_size}, T = {length} on each rank, ranks: {ranks}; MiB on the rank with most")
    columns = {name: max(len(name), 6) + 2 for name in (*GROUPS, "together")}
    first = max(len(str(need)) for need in found)
    OUT.print(" " * first + "".join(f"{name:>{width}}" for name, width in columns.items()))
    for need in found:
        sizes = {**need.groups, "together": need.together}
        row = "".join(f"{sizes[name] / 2**20:>{width}.0f}" for name, width in columns.items())
        OUT.print(f"{need!s:<{first}}{row}  {'fits' if need.together <= available else 'too much'}")
    OUT.print(f"available: {available / 2**20:.0f} MiB")


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
