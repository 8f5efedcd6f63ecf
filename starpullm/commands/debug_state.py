"""``starpullm debug-state``: a step beside llm.c's debug state, within tolerances."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from starpullm.checks.debug_state import check_debug_state, expected_losses
from starpullm.checks.result import Outcome
from starpullm.commands.main import EXIT_DIFFERENT, all_ranks, guarded_ranks
from starpullm.commands.options import (
    PATH,
    blas_library_option,
    json_option,
    matmul_option,
    partition_option,
    reduction_option,
    scheduler_option,
)
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.debug_state import read_debug_state
from starpullm.runtime import Runtime

__all__ = ["debug_state_command"]


@click.command("debug-state")
@click.argument("state_file", metavar="STATE.bin", type=PATH)
@click.option("--checkpoint", type=PATH, required=True, help="The model that it belongs to.")
@partition_option
@scheduler_option
@click.option("--sub-batches", type=int, default=1, show_default=True, help="Parts of each rank's batch.")
@reduction_option
@matmul_option
@blas_library_option
@json_option
def debug_state_command(
    state_file: Path,
    checkpoint: Path,
    partition: str,
    scheduler: str,
    sub_batches: int,
    reduction: str,
    matmul: str,
    blas_library: str | None,
    as_json: bool,
) -> None:
    """Compare a step with llm.c's debug state, within the tolerances of llm.c's own test.

    Logits, loss and gradients; for the starter pack's gpt2_124M_debug_state.bin also ten steps' losses. That is no
    comparison of bits: see parity.

    Exit status 0: all within the tolerances; 1: some aren't; 2: bad usage or input.
    """
    with all_ranks() as comm:
        state = read_debug_state(state_file, checkpoint_config(checkpoint), mmap=True)
        with (
            Runtime(partition, scheduler, comm, matmul=matmul, blas_library=blas_library) as runtime,
            guarded_ranks(comm),
            progress_bar(hidden=as_json) as progress,
        ):
            bar = progress.add_task("debug state", total=len(expected_losses(state)))
            result = check_debug_state(
                state,
                runtime,
                checkpoint,
                sub_batches=sub_batches,
                reduction=reduction,
                progress=lambda: progress.advance(bar),
            )
        if as_json:
            print_json(result.as_json())
        else:
            for line in result.describe():
                OUT.print(line, markup=False)
    if result.outcome is Outcome.FAILED:
        sys.exit(EXIT_DIFFERENT)
